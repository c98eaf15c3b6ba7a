"""Disk for image and weights, the model's file system, /dev/shm, leftovers. Pure."""

from __future__ import annotations

from megamoe.deploy.profiles import load_profile
from megamoe.deploy.schema import Deploy
from megamoe.envelope import Finding
from megamoe.preflight.policy import policy
from megamoe.preflight.reading import Facts, finding, gib, mapping, num, rows, text, unknown

SHM_DEFAULT, SHM_WANTED = 64 << 20, 8 << 30  # NVIDIA/nccl#342, pytorch/torchtitan#853, vllm-project/vllm#1710
NETWORK = ("nfs", "nfs4", "lustre", "cifs", "smb3", "ceph", "glusterfs", "beegfs", "9p", "virtiofs", "wekafs", "gpfs")


def shm(facts: Facts, deploy: Deploy) -> list[Finding]:
    if deploy.container.ipc != "host":
        return []
    size = mapping(facts.get("shm"))
    total, free = num(size.get("total_bytes")), num(size.get("free_bytes"))
    listed = facts.get("shm_leftovers")
    left = [text(name) for name in listed[:2000]] if isinstance(listed, list) else []
    out = []
    if left:
        out.append(
            finding(
                "SHM_LEFTOVERS",
                "warn",
                f"{len(left)} segment(s) of ended runs in /dev/shm: {', '.join(left[:4])}",
                "crashed runs leave them; when /dev/shm is full the next start ends in 'unhandled system error'",
                "check with `lsof +D /dev/shm` that nobody holds them, then remove those files by name",
            )
        )
    if total is None or free is None:
        return [*out, unknown("SHM", "/dev/shm is unknown", "ranks talk through it", "collect facts on the host")]
    if total <= SHM_DEFAULT or free <= SHM_DEFAULT:
        out.append(
            finding(
                "SHM_TOO_SMALL",
                "error",
                f"/dev/shm: {free:g} of {total:g} bytes free",
                "ranks talk through it",
                "list leftovers with `ls -l /dev/shm`; give it more room",
            )
        )
    elif free < SHM_WANTED:
        out.append(
            finding(
                "SHM_SMALL", "warn", f"/dev/shm: {free:g} bytes free", "8 ranks may need 8 GiB", "give it more room"
            )
        )
    return out


def images(facts: Facts, deploy: Deploy) -> list[Finding]:
    """Room for the image, unless it is here already."""
    free = num(mapping(facts.get("disk_docker")).get("free_bytes"))
    if facts.get("image_present") is True:
        return []
    least, wanted = policy()["disk"]["image_least_bytes"], policy()["disk"]["image_wanted_bytes"]
    if free is None:
        return [
            unknown(
                "DISK_IMAGE",
                "the room for images is unknown",
                "a pull that fills the disk stops every container",
                "collect facts on the host",
            )
        ]
    if free < least:
        return [
            finding(
                "DISK_IMAGE",
                "error",
                f"{gib(free)} free for images; one needs about {gib(least)} unpacked",
                "the pull fills the disk, and that stops every container of the host",
                "remove images that nothing uses (`docker image ls`), or move the engine's data root",
            )
        ]
    if free < wanted:
        return [
            finding(
                "DISK_IMAGE",
                "warn",
                f"{gib(free)} free for images",
                f"an image and the one before it need about {gib(wanted)}",
                "remove images that nothing uses",
            )
        ]
    return []


def model(facts: Facts, deploy: Deploy) -> list[Finding]:
    """Room for what is still missing of the weights, and how they will be read."""
    where = mapping(facts.get("disk_model"))
    free, have = num(where.get("free_bytes")), num(facts.get("model_bytes"))
    size = load_profile(deploy.model.profile).checkpoint_bytes
    out = []
    if free is None or have is None:
        out.append(
            unknown(
                "DISK_MODEL",
                f"the room at {deploy.model.path} or what is there is unknown",
                "the weights must be there, or there must be room for them",
                "collect facts on the host",
            )
        )
    elif size is not None and have < size:
        missing = size - have
        if free < missing:
            out.append(
                finding(
                    "DISK_MODEL",
                    "error",
                    f"{gib(missing)} of the weights are missing at {deploy.model.path}, {gib(free)} are free",
                    "a download that fills the disk leaves cut shards, which load and answer wrongly",
                    "give more room, or another model.path",
                )
            )
        else:
            out.append(
                finding(
                    "MODEL_NOT_COMPLETE",
                    "warn",
                    f"{gib(have)} of {gib(size)} are at {deploy.model.path}",
                    "engines drop missing shards without a word",
                    "let the role model fetch it, then `megamoe verify-model`",
                )
            )
    kind = text(where.get("fstype"), 20).lower()
    mmap_off = str(deploy.env.get("ATOM_DISABLE_MMAP", "true")).lower() in ("1", "true", "yes", "on")
    if kind and (kind in NETWORK or kind.startswith("fuse")) and not mmap_off:
        out.append(
            finding(
                "MODEL_MMAP_NETWORK",
                "warn",
                f"{deploy.model.path} is on {kind} and ATOM_DISABLE_MMAP is off",
                "weights are read page by page over the network: 20 minutes and more instead of one",
                'set env.ATOM_DISABLE_MMAP: "true"',
            )
        )
    return out


def locks(facts: Facts) -> list[Finding]:
    """Lock files of ended compiles (SemiAnalysisAI/InferenceX#1360)."""
    listed = facts.get("stale_locks")
    names = [text(r.get("path") if isinstance(r, dict) else r, 200) for r in listed] if isinstance(listed, list) else []
    names = [n for n in names if n]
    return (
        [
            finding(
                "STALE_LOCKS",
                "warn",
                f"{len(names)} lock file(s) of ended compiles: {', '.join(names[:4])}",
                "ranks wait for them for ever ('waiting for baton release')",
                "make sure that no container uses this cache, then remove those files",
            )
        ]
        if names
        else []
    )


def has_gpu(container: Facts) -> bool:
    """Whether a listed container holds GPU device nodes: said as such, or to be seen from its devices."""
    devices = container.get("devices")
    paths = [text(d, 200) for d in devices] if isinstance(devices, list) else []
    return container.get("gpu") is True or bool(container.get("gpus")) or any(
        "/dev/kfd" in path or "/dev/dri" in path for path in paths)


def held(facts: Facts, deploy: Deploy) -> list[Finding]:
    """Containers that hold GPU device nodes without using memory now; in use is judged with VRAM."""
    others = [
        text(r.get("name"), 60)
        for r in rows(facts.get("containers")) or []
        if has_gpu(r) and text(r.get("name"), 60).strip("/") != deploy.container.name
    ]
    busy = any((num(r.get("vram_used_mb")) or 0) > 2048 for r in rows(facts.get("gpus")) or [])
    return (
        [
            finding(
                "GPU_SHARED",
                "warn",
                f"container(s) with GPU devices are running: {', '.join(others[:16])}",
                "they use no GPU memory now; when they begin to, both run out",
                "move them to another host, or make sure that they only watch",
            )
        ]
        if others and not busy
        else []
    )
