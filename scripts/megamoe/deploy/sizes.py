"""Sizes as the programs that read them parse them: mori for its heap, docker and podman for /dev/shm."""

from __future__ import annotations

import re

GIB = 1 << 30
MIB = 1 << 20
_FACTOR = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MORI_SAFE = re.compile(r"([0-9]{1,18})(?:([KMG])(?:iB)?|([KMG])[Bb]|([kmg])(?:ib|b)?)?\Z")
_ENGINE = re.compile(r"([0-9]{1,12})(\.[0-9]{1,6})? ?([bkmgtp]?)(?:ib|b)?\Z", re.IGNORECASE)


def mori_bytes_as_parsed(text: str) -> int | None:
    """The byte count that mori reads from MORI_SHMEM_HEAP_SIZE, however wrong; None when mori aborts on it.

    Source: ROCm/mori src/shmem/init.cpp ParseSizeString at the pinned commit. A known suffix is cut off, then
    std::stoull reads the leading digits and ignores the rest, so "16Gi" and "16T" are 16 bytes and "1.5G" is 1 GiB.
    """
    if not text:
        return 0
    number, factor = text, 1
    for suffixes in (
        ("GiB", "gib", "MiB", "mib", "KiB", "kib"),
        ("GB", "gb", "Gb", "MB", "mb", "Mb", "KB", "kb", "Kb"),
        ("G", "g", "M", "m", "K", "k"),
    ):
        if factor == 1 and len(number) >= len(suffixes[0]) and number.endswith(suffixes):
            factor = _FACTOR[number[-len(suffixes[0])].upper()]
            number = number[: -len(suffixes[0])]
    digits = re.match(r"[ \t\n\v\f\r]*([+-]?)([0-9]{1,20})", number)
    if digits is None or int(digits[2]) >= 1 << 64:
        return None
    # stoull takes a minus sign and wraps around: "-1" is the largest number there is.
    return (int(digits[1] + digits[2]) * factor) % (1 << 64)


def mori_bytes(text: str) -> int | None:
    """Bytes of a size that mori reads as a person means it (16G, 16GB, 16GiB, 17179869184); None for any other."""
    found = _MORI_SAFE.match(text)
    if found is None:
        return None
    unit = (found[2] or found[3] or found[4] or "").upper()
    value = int(found[1]) * _FACTOR[unit]
    return value if value == mori_bytes_as_parsed(text) else None


def engine_bytes(value: str | int) -> int | None:
    """Bytes of a docker or podman size such as 64g, 512m or 67108864; None when it is not one.

    Source: docker/go-units RAMInBytes, used by both engines: binary multiples, any letter case, fractions allowed.
    """
    if isinstance(value, int):
        return value if value >= 0 else None
    found = _ENGINE.match(value)
    if found is None:
        return None
    power = "bkmgtp".index(found[3].lower()) if found[3] else 0
    return int(float(found[1] + (found[2] or "")) * 1024**power)


def human(count: float) -> str:
    """Bytes as text a person reads, with the unit that keeps it exact where possible."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= factor:
            return f"{count / factor:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{int(count)} bytes"
