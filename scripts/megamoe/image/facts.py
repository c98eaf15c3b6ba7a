"""Facts of the running container that decide whether the engine may start. All reading is here; nothing is judged.

Below `root` (for tests; "/" in a container): /sys/class/kfd (the kernel driver's list of GPUs), /dev/kfd, /dev/dri,
/dev/shm, the stack lock.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_CONTAINER_PATHS = (
    "MEGAMOE_STATUS_DIR", "FLYDSL_RUNTIME_CACHE_DIR", "AITER_JIT_DIR", "MORI_JIT_CACHE_DIR", "TRITON_CACHE_DIR", "HOME",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Device:
    """A device node: `error` is None when it could be opened for reading and writing, else the errno's name."""

    path: str
    group: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Gpu:
    arch: str
    vram_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What the container was given. groups: the process's numbers. writable: variable to an error, or None."""

    gpus: tuple[Gpu, ...]
    devices: tuple[Device, ...]
    groups: tuple[int, ...]
    uid: int
    shm_bytes: int | None
    writable: Mapping[str, str | None] = field(default_factory=dict)
    not_run: tuple[str, ...] = ()


def gfx_name(version: int) -> str:
    """gfx name of the driver's gfx_target_version: 90500 is gfx950, 90010 is gfx90a. Source: Linux amdkfd topology."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _properties(path: Path) -> dict[str, int]:
    found = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := re.fullmatch(r"(\w+)\s+(\d+)", line.strip()):
            found[match[1]] = int(match[2])
    return found


def gpus(root: Path) -> tuple[Gpu, ...]:
    """GPUs of the driver's topology; () without a driver. Nodes without SIMD units are CPUs."""
    found = []
    for node in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*"), key=lambda p: p.name.zfill(4)):
        try:
            properties = _properties(node / "properties")
            if not properties.get("simd_count"):
                continue
            banks = [_properties(bank / "properties") for bank in sorted((node / "mem_banks").glob("*"))]
        except OSError:
            continue  # a GPU that this container's device rules hide is listed, and cannot be read
        # heap_type 1 and 2 are the card's own memory, visible to the host or not.
        vram = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2))
        found.append(Gpu(gfx_name(properties.get("gfx_target_version", 0)), vram))
    return tuple(found)


def device(path: Path) -> Device:
    """Opens a device node the way the runtime does, which alone proves that the groups fit."""
    try:
        group: int | None = path.stat().st_gid
    except OSError as error:
        return Device(str(path), None, errno.errorcode.get(error.errno or 0, "EIO"))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return Device(str(path), group, errno.errorcode.get(error.errno or 0, "EIO"))
    return Device(str(path), group, None)


def _write_error(folder: str) -> str | None:
    probe = Path(folder) / f".megamoe-probe-{os.getpid()}"
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None


def collect(env: Mapping[str, str], root: Path = Path("/")) -> Facts:
    """Reads all facts. Directories that must be writable are made, and a file is written to each and removed."""
    nodes = [root / "dev/kfd", *sorted((root / "dev/dri").glob("renderD*"))]
    try:
        shm = os.statvfs(root / "dev/shm")
        shm_bytes: int | None = shm.f_frsize * shm.f_blocks
    except OSError:
        shm_bytes = None
    not_run = root / "opt/megamoe/not_run"
    return Facts(
        gpus=gpus(root),
        devices=tuple(device(path) for path in nodes),
        groups=tuple(sorted({*os.getgroups(), os.getegid()})),
        uid=os.geteuid(),
        shm_bytes=shm_bytes,
        writable={name: _write_error(env[name]) for name in _CONTAINER_PATHS if env.get(name)},
        not_run=tuple(sorted(path.name for path in not_run.iterdir())) if not_run.is_dir() else (),
    )
