"""Host facts and a deployment to findings. Pure. What is absent is unknown, and said to be unknown."""

from __future__ import annotations

import re
from typing import Any

from megamoe.deploy.schema import Deploy
from megamoe.envelope import Finding

STRANDED_MB = 2048  # field_bugs 80: more VRAM than this in use without an owner is not bookkeeping
SHM_DEFAULT, SHM_WANTED = 64 << 20, 8 << 30  # field_bugs 72
Facts = dict[str, Any]


def _f(code: str, severity: str, what: str, why: str, fix: str) -> Finding:
    return Finding(code, severity, what, why, fix)  # type: ignore[arg-type]


def _num(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _rows(value: object) -> list[dict[str, Any]] | None:
    return [r for r in value if isinstance(r, dict)] if isinstance(value, list) else None


def judge(facts: Facts, deploy: Deploy) -> list[Finding]:
    """All findings; an error blocks the deployment of this host."""
    if deploy.engine == "reference" and deploy.gpu.count == 0:
        return ports(facts, deploy) + shm(facts, deploy)
    return (permissions(facts, deploy) + vram(facts) + count(facts, deploy) + arch(facts, deploy) + kernel(facts)
            + partition(facts) + ports(facts, deploy) + shm(facts, deploy) + disk(facts, deploy)
            + engine(facts, deploy))


def permissions(facts: Facts, deploy: Deploy) -> list[Finding]:
    """Only a real open of /dev/kfd as the container's user is evidence (field_bugs 67, 68)."""
    host, probe = _map(facts.get("host")), _map(facts.get("probe"))
    nodes = {p: int(g) for p, d in _map(host.get("dev")).items() if (g := _num(_map(d).get("gid"))) is not None}
    opened = probe.get("open_kfd_rdwr")
    have = probe.get("container_groups")
    groups = sorted(set(nodes.values()))
    numbers = ", ".join(map(str, groups)) or "the number from `stat -c %g /dev/kfd`"
    fix = f"give numeric groups: container.group_add: [{numbers}]; names resolve inside the image to other numbers"
    why = "the engine's ranks open it read-write; a monitoring tool that lists the GPUs does not need that"
    if isinstance(opened, str) and opened != "OK":
        if opened in ("EACCES", "EPERM"):
            image = _map(_map(facts.get("image")).get("groups"))
            drift = "".join(f"; group {n} is {image[n]} in the image and {g} on the host"
                            for n, g in _map(host.get("groups")).items() if n in image and image[n] != g)
            return [_f("DEVICE_PERMISSION", "error", f"the container's user may not open /dev/kfd ({opened}){drift}; "
                       f"the node belongs to group {nodes.get('/dev/kfd', 'unknown')}", why, fix)]
        return [_f("DEVICE_UNUSABLE", "error", f"opening /dev/kfd gives {opened[:20]}", why,
                   "ENOENT: the node was not passed or amdgpu is not loaded; EINVAL: driver and user space do not fit")]
    if isinstance(have, list) and groups:
        root = 0 in [g for g in have if _num(g) == 0]
        lacking = [g for g in groups if g not in have]
        if lacking and not root and opened != "OK":
            return [_f("DEVICE_PERMISSION", "error", f"the container lacks group {', '.join(map(str, lacking))}", why,
                       fix)]
    on_host = probe.get("host_open_kfd_rdwr")
    if opened is None and isinstance(on_host, str) and on_host not in ("OK", "EACCES", "EPERM"):
        return [_f("DEVICE_UNUSABLE", "error", f"opening /dev/kfd on the host gives {on_host[:20]}", why,
                   "load amdgpu (`modprobe amdgpu`), then see `dmesg | grep amdgpu`")]
    if opened is None:
        return [_f("UNKNOWN_KFD_ACCESS", "info", "whether the container's user can open /dev/kfd is unknown",
                   "only a real open as that user is evidence", "smoke-start the image, or give probe.open_kfd_rdwr")]
    return []


def vram(facts: Facts) -> list[Finding]:
    """Memory in use, and by whom: only live processes with VRAM are owners (field_bugs 80-82)."""
    rows = _rows(facts.get("gpus"))
    if rows is None:
        return [_f("UNKNOWN_VRAM", "warn", "VRAM in use is unknown", "a busy GPU makes the load fail after minutes",
                   "collect facts with amdgpu loaded, or give gpus[]")]
    out = []
    used = {str(r.get("id"))[:20]: u for r in rows
            if (u := _num(r.get("vram_used_mb"))) is not None and u > STRANDED_MB}
    unread = [str(r.get("id"))[:20] for r in rows if _num(r.get("vram_used_mb")) is None]
    if unread:
        out.append(_f("VRAM_UNREADABLE", "warn", f"VRAM in use is unknown for GPU {', '.join(map(str, unread[:16]))}",
                      "a busy GPU makes the load fail after minutes", "give vram_used_mb for each GPU"))
    if not used:
        return out
    shown = ", ".join(f"GPU {i}: {u:g} MB" for i, u in list(used.items())[:16])
    listed = _rows(facts.get("kfd_processes"))
    held = [c for c in _rows(facts.get("containers")) or [] if c.get("gpu")]
    owners = [p for p in listed or [] if p.get("alive") is not False and (_num(p.get("vram_mb")) or 0) > 0]
    if owners or held:
        who = ", ".join([f"pid {p.get('pid')} ({str(p.get('name'))[:40]}, {p.get('vram_mb')} MB)" for p in owners[:16]]
                        + [f"container {str(c.get('name'))[:60]}" for c in held[:16]])
        out.append(_f("GPU_BUSY", "error", f"{shown}; held by {who}", "the model does not fit next to it",
                      "ask its owner to end it by its own means, or choose another host"))
    elif listed is None:
        out.append(_f("GPU_BUSY_OWNER_UNKNOWN", "error", f"{shown}; who holds it is unknown",
                      "the model does not fit next to it", "collect kfd_processes on the host"))
    else:
        out.append(_f("HOST_VRAM_STRANDED", "error", f"{shown} in use with no live owner",
                      "the driver strands memory after ranks end mid-operation; no process can give it back",
                      "the operator has to drain this host and reset its GPUs (or reboot); processes that are listed "
                      "without VRAM are not the cause"))
    return out


def count(facts: Facts, deploy: Deploy) -> list[Finding]:
    """GPU count from sources that must agree (field_bugs 85)."""
    expected = int(_num(facts.get("expected_gpus")) or deploy.gpu.count)
    sources = {k: n for k in ("lspci_accelerators", "kfd_gpu_nodes", "rocm_smi_gpus", "torch_device_count")
               if (n := _num(facts.get(k) if not isinstance(facts.get(k), list) else len(facts[k]))) is not None}
    if not sources:
        return [_f("UNKNOWN_GPU_COUNT", "warn", "the number of GPUs is unknown", f"{expected} are planned",
                   "collect facts on the host")]
    shown = ", ".join(f"{k} {v:g}" for k, v in sources.items())
    if any(v < expected for v in sources.values()) or len(set(sources.values())) > 1:
        seen = {str(r.get("address", "")).lower() for r in _rows(facts.get("kfd")) or []}
        lost = sorted({str(r.get("address", "")).lower() for r in _rows(facts.get("pci")) or []} - seen) if seen else []
        text = "\n".join(str(m)[:400] for m in facts["dmesg"][:1000]) if isinstance(facts.get("dmesg"), list) else ""
        lost += [a for a in dict.fromkeys(re.findall(
            r"amdgpu ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]).*(?:error|fail|fatal|invalid)", text, re.I))
            if a not in lost]
        where = f"; PCI address {', '.join(lost[:8])}" if lost else ""
        return [_f("GPU_COUNT", "error", f"{expected} GPUs expected; {shown}{where}",
                   "a missing GPU leaves its rank without a device, and the others wait",
                   "see `dmesg | grep amdgpu` for that address; reset or reboot the host, then preflight again; "
                   "check *_VISIBLE_DEVICES")]
    return []


def arch(facts: Facts, deploy: Deploy) -> list[Finding]:
    listed = facts.get("archs")
    names = {str(a) for a in listed} if isinstance(listed, list) else {
        str(r["arch"]) for r in _rows(facts.get("kfd")) or [] if r.get("arch")}
    names = {n for n in names if n.startswith("gfx")}
    if not names:
        return [_f("UNKNOWN_ARCH", "info", "the GPUs' architecture is unknown", f"{deploy.gpu.arch} is planned",
                   "collect facts on the host")]
    if names != {deploy.gpu.arch}:
        return [_f("GPU_ARCH", "error", f"the GPUs are {', '.join(sorted(names))}, the plan is {deploy.gpu.arch}",
                   "kernels are built for one architecture", "choose hosts of the planned architecture")]
    return []


def kernel(facts: Facts) -> list[Finding]:
    out = []
    line = facts.get("cmdline")
    if not isinstance(line, str):
        out.append(_f("UNKNOWN_CMDLINE", "info", "the kernel line is unknown", "iommu=pt matters", "give cmdline"))
    elif "iommu=pt" not in line.split():
        out.append(_f("IOMMU_NOT_PT", "warn", "the kernel line lacks iommu=pt", "multi-GPU copies can hang without it",
                      "add iommu=pt and reboot at a maintenance window"))
    numa = _num(facts.get("numa_balancing"))
    if numa is None:
        out.append(_f("UNKNOWN_NUMA_BALANCING", "info", "NUMA balancing is unknown", "it should be off",
                      "read /proc/sys/kernel/numa_balancing"))
    elif numa:
        out.append(_f("NUMA_BALANCING", "warn", f"kernel.numa_balancing is {numa:g}", "page migration costs speed",
                      "set kernel.numa_balancing=0 (role host_tuning, opt-in)"))
    state = facts.get("amdgpu_initstate")
    if state is not None and state != "live":
        out.append(_f("AMDGPU_NOT_LIVE", "error", f"module amdgpu is {str(state)[:40]!r}, not live",
                      "no GPU works without it", "`modprobe amdgpu`; build it for the running kernel"))
    hidden = {k: v for k, v in _map(facts.get("env")).items() if k.endswith("_VISIBLE_DEVICES")}
    if hidden:
        out.append(_f("VISIBLE_DEVICES", "warn", ", ".join(f"{k}={str(v)[:80]}" for k, v in hidden.items()),
                      "it silently shrinks the set of GPUs", "unset it for the service"))
    if facts.get("clock_synchronised") is False:
        out.append(_f("CLOCK", "warn", "the clock is not synchronised", "logs of hosts cannot be put in order",
                      "enable NTP (chrony or systemd-timesyncd)"))
    return out


def partition(facts: Facts) -> list[Finding]:
    modes = {str(r["partition"]) for r in _rows(facts.get("gpus")) or [] if r.get("partition")}
    if modes - {"SPX"}:
        return [_f("PARTITION_MODE", "error", f"compute partition is {', '.join(sorted(modes))[:80]}, SPX is needed",
                   "the kernels need all compute units of a GPU together",
                   "the operator sets SPX (`amd-smi set --compute-partition SPX`)")]
    return []


def ports(facts: Facts, deploy: Deploy) -> list[Finding]:
    listening = facts.get("listening_ports")
    if not isinstance(listening, list):
        return [_f("UNKNOWN_PORTS", "info", "listening ports are unknown", "a taken port fails after the load",
                   "collect facts on the host")]
    taken = sorted({deploy.args.port, deploy.args.internal_port} & {p for p in listening if isinstance(p, int)})
    return [_f("PORT_IN_USE", "error", f"port {', '.join(map(str, taken))} is taken",
               "the server loads for minutes and then cannot bind it",
               "find the holder with `ss -ltnp`; if it is this service, stop it by its own means")] if taken else []


def shm(facts: Facts, deploy: Deploy) -> list[Finding]:
    if deploy.container.ipc != "host":
        return []
    size = _map(facts.get("shm"))
    total, free = _num(size.get("total_bytes")), _num(size.get("free_bytes"))
    if total is None or free is None:
        return [_f("UNKNOWN_SHM", "info", "/dev/shm is unknown", "ranks talk through it", "collect facts on the host")]
    if total <= SHM_DEFAULT or free <= SHM_DEFAULT:
        return [_f("SHM_TOO_SMALL", "error", f"/dev/shm: {free:g} of {total:g} bytes free", "ranks talk through it",
                   "list leftovers with `ls -l /dev/shm`; give it more room")]
    if free < SHM_WANTED:
        return [_f("SHM_SMALL", "warn", f"/dev/shm: {free:g} bytes free", "8 ranks may need 8 GiB",
                   "give it more room")]
    return []


def disk(facts: Facts, deploy: Deploy) -> list[Finding]:
    free = _num(_map(facts.get("disk_docker")).get("free_bytes"))
    if free is not None and free < 100 << 30:
        return [_f("DISK_IMAGE", "warn", f"{free / (1 << 30):.0f} GiB free for images", "a ROCm image and the one "
                   "before it need about 100 GiB", "remove images that nothing uses")]
    return []


def engine(facts: Facts, deploy: Deploy) -> list[Finding]:
    engines = facts.get("engines")
    wanted = deploy.container.engine
    if not isinstance(engines, dict):
        return [_f("UNKNOWN_ENGINE", "info", "the container engine is unknown", f"{wanted} is planned",
                   "collect facts on the host")]
    return [] if wanted in engines else [_f("ENGINE_MISSING", "warn", f"{wanted} is not installed",
                                            "the plan names it", "role container_engine installs it")]
