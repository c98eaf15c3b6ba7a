"""Host facts and a deployment to findings. Pure. What is absent is unknown, and said to be unknown."""

from __future__ import annotations

from megamoe.deploy.schema import DP_PORT, Deploy
from megamoe.envelope import Finding
from megamoe.preflight import hardware, storage
from megamoe.preflight.engine import engine
from megamoe.preflight.permissions import permissions
from megamoe.preflight.reading import Facts, finding, mapping, num, rows, text, unknown

STRANDED_MB = 2048  # ROCm/rocm-systems#8263: more VRAM than this in use without an owner is not bookkeeping




def judge(facts: Facts, deploy: Deploy) -> list[Finding]:
    """All findings; an error blocks the deployment of this host."""
    if deploy.engine == "reference" and deploy.gpu.count == 0:
        return ports(facts, deploy) + storage.shm(facts, deploy)
    return [
        *permissions(facts, deploy),
        *vram(facts),
        *storage.held(facts, deploy),
        *hardware.count(facts, deploy),
        *hardware.arch(facts, deploy),
        *hardware.card_memory(facts, deploy),
        *hardware.memory_errors(facts),
        *hardware.kernel_log(facts),
        *hardware.driver(facts),
        *hardware.kernel(facts),
        *hardware.partition(facts),
        *hardware.host_memory(facts),
        *ports(facts, deploy),
        *storage.shm(facts, deploy),
        *storage.images(facts, deploy),
        *storage.model(facts, deploy),
        *storage.locks(facts),
        *engine(facts, deploy),
        *unread(facts),
    ]


def unread(facts: Facts) -> list[Finding]:
    """What the collector could not learn of the image, one finding per reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in list(mapping(facts.get("unknown_because")).items())[:100]:
        by_reason.setdefault(text(reason, 200) or "no reason is given", []).append(text(name, 40))
    return [unknown("IMAGE", f"{', '.join(names)}: {reason}", "group numbers, GPU code and ROCm of the image are then "
                    "not compared with the host", "`megamoe preflight --collect --inside-image` on the host, once the "
                    "image is there") for reason, names in by_reason.items()]  # fmt: skip


def vram(facts: Facts) -> list[Finding]:
    """Memory in use, and by whom: only live processes with VRAM are owners (ROCm/rocm-systems#8263, #7331)."""
    listed = rows(facts.get("gpus"))
    if listed is None:
        return [
            unknown(
                "VRAM",
                "VRAM in use is unknown",
                "a busy GPU makes the load fail after minutes",
                "collect facts with amdgpu loaded, or give gpus[]",
                "warn",
            )
        ]
    out = []
    used = {
        text(r.get("id"), 20): u for r in listed if (u := num(r.get("vram_used_mb"))) is not None and u > STRANDED_MB
    }
    frozen = {text(r.get("id"), 20) for r in listed if text(r.get("id"), 20) in used and _runtime_says_free(r)}
    if frozen:
        out.append(
            finding(
                "VRAM_COUNTER",
                "warn",
                f"GPU {', '.join(sorted(frozen)[:16])}: the driver counts memory in "
                "use, the runtime finds nearly all of it free",
                "the driver's counter has been seen frozen",
                "trust the runtime; a reload of amdgpu sets the counter right",
            )
        )
        used = {gpu: value for gpu, value in used.items() if gpu not in frozen}
    unread = [text(r.get("id"), 20) for r in listed if num(r.get("vram_used_mb")) is None]
    if unread:
        out.append(
            finding(
                "VRAM_UNREADABLE",
                "warn",
                f"VRAM in use is unknown for GPU {', '.join(unread[:16])}",
                "a busy GPU makes the load fail after minutes",
                "give vram_used_mb for each GPU",
            )
        )
    return [*out, *_owners(facts, used)] if used else out


def _runtime_says_free(row: Facts) -> bool:
    """A second source, the HIP runtime's own free memory, where the facts have it."""
    free, total = num(row.get("runtime_free_mb")), num(row.get("vram_total_mb"))
    return free is not None and total is not None and total > 0 and free >= 0.97 * total


def _owners(facts: Facts, used: dict[str, float]) -> list[Finding]:
    shown = ", ".join(f"GPU {i}: {u:g} MB" for i, u in list(used.items())[:16])
    processes = rows(facts.get("kfd_processes"))
    held = [c for c in rows(facts.get("containers")) or [] if storage.has_gpu(c)]
    owners = [p for p in processes or [] if p.get("alive") is not False and (num(p.get("vram_mb")) or 0) > 0]
    # A tool that looks at the GPUs has a few MB of its own: that is not what is missing.
    explained = sum(num(p.get("vram_mb")) or 0 for p in owners) > STRANDED_MB
    if explained or held:
        who = ", ".join(
            [f"pid {p.get('pid')} ({str(p.get('name'))[:40]}, {p.get('vram_mb')} MB)" for p in owners[:16]]
            + [f"container {str(c.get('name'))[:60]}" for c in held[:16]]
        )
        return [
            finding(
                "GPU_BUSY",
                "error",
                f"{shown}; held by {who}",
                "the model does not fit next to it",
                "ask its owner to end it by its own means, or choose another host",
            )
        ]
    if processes is None:
        return [
            finding(
                "GPU_BUSY_OWNER_UNKNOWN",
                "error",
                f"{shown}; who holds it is unknown",
                "the model does not fit next to it",
                "collect kfd_processes on the host",
            )
        ]
    return [
        finding(
            "HOST_VRAM_STRANDED",
            "error",
            f"{shown} in use with no live owner",
            "the driver strands memory after ranks end mid-operation; no process can give it back",
            "the operator has to drain this host and reset its GPUs (or reboot); processes that are listed "
            "without VRAM are not the cause",
        )
    ]


def _listening(facts: Facts) -> dict[int, str] | None:
    """Taken ports with what is known of the holder: listening_ports as numbers, text or rows, and port_<n>."""
    listed = facts.get("listening_ports")
    held: dict[int, str] = {}
    for entry in listed if isinstance(listed, list) else []:
        row = entry if isinstance(entry, dict) else {"port": entry}
        if 0 < (port := num(row.get("port")) or 0) < 65536:
            held[int(port)] = _holder(row)
    for name in facts:
        if name.startswith("port_") and 0 < (port := num(name[5:]) or 0) < 65536 and mapping(facts[name]):
            held[int(port)] = _holder(mapping(facts[name]))
    return held if held or isinstance(listed, list) else None


def _holder(row: Facts) -> str:
    said = [f"{name} {text(row[name], 60)}" for name in ("pid", "container") if text(row.get(name), 60)]
    return f" by {', '.join(said)}" if said else ""


def ports(facts: Facts, deploy: Deploy) -> list[Finding]:
    held = _listening(facts)
    if held is None:
        return [
            unknown(
                "PORTS", "listening ports are unknown", "a taken port fails after the load", "collect facts on the host"
            )
        ]
    wanted = {deploy.args.port, deploy.args.internal_port}
    if deploy.engine == "atom" and deploy.container.network_mode == "host":
        wanted.add(DP_PORT)
    taken = ", ".join(f"{port}{held[port]}" for port in sorted(wanted & held.keys()))
    return (
        [
            finding(
                "PORT_IN_USE",
                "error",
                f"port {taken} is taken",
                "the server loads for minutes and then cannot bind it",
                "find the holder with `ss -ltnp`; if it is this service, stop it by its own means",
            )
        ]
        if taken
        else []
    )
