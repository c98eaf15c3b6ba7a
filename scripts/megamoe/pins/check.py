"""Offline judgement of the pins: nothing floats, and no second copy of a pin says something else."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from megamoe.envelope import Finding
from megamoe.pins.model import Pins

# Files that decide what an image holds. Tests, locks and recorded facts (blob ids, golden hashes) pin nothing.
_DECIDING = re.compile(
    r"^(docker-bake\.hcl|docker/(?!profiles/|reference_engine/).*|ansible/.*\.(ya?ml|j2)|scripts/.*\.(sh|py)|\.ci/.*)$"
)
_HEX = re.compile(r"(?<![0-9a-zA-Z])(?:[0-9a-f]{64}|[0-9a-f]{40})(?![0-9a-zA-Z])")
_FLOATING = re.compile(r"(:latest\b|_COMMIT=(HEAD|main|master)\b|[#@](main|master|HEAD)\b|pip install[^\n]*--pre\b)")
_ZERO = re.compile(r"^([0-9a-f])\1+$")


def tracked_files(root: Path) -> list[str]:
    """Names that git tracks below root, or every file when root is no checkout."""
    done = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, timeout=60, check=False)
    if done.returncode == 0:
        return [name for name in done.stdout.decode().split("\0") if name]
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


def known_hashes(pins: Pins) -> set[str]:
    """Every hash that the pins file itself holds."""
    return set(_HEX.findall(pins.model_dump_json()))


def pins_elsewhere(pins: Pins, root: Path, names: Iterable[str]) -> Iterator[Finding]:
    """Hashes and floating references in files that decide what is built, other than pins.toml itself."""
    known = known_hashes(pins)
    for name in names:
        if name == "docker/pins.toml" or not _DECIDING.match(name) or name.startswith("scripts/megamoe/pins/"):
            continue
        try:
            text = (root / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for found in _HEX.findall(line):
                if _ZERO.match(found):  # an example value, visibly not a pin
                    continue
                agrees = found in known
                yield Finding(
                    "pin_second_copy" if agrees else "pin_elsewhere",
                    "error",
                    f"{found} is written here"
                    + (" as well as in docker/pins.toml" if agrees else " and not in docker/pins.toml"),
                    "a second place for a version is forgotten at the next bump",
                    "read it from docker/pins.toml (`megamoe pins args` prints build arguments)",
                    file=name,
                    line=number,
                    quote=line.strip()[:160],
                )
            if (match := _FLOATING.search(line)) and not line.lstrip().startswith(("#", "//")):
                yield Finding(
                    "pin_floating",
                    "error",
                    f"floating reference {match.group(0)!r}",
                    "next week it names other software",
                    "name a commit, a digest or an exact version",
                    file=name,
                    line=number,
                    quote=line.strip()[:160],
                )


def lock_findings(root: Path) -> Iterator[Finding]:
    """Each lock pins every line exactly, with at least one sha256, and names no address."""
    for lock in sorted((root / "requirements").glob("*.lock")):
        text = lock.read_text(encoding="utf-8").replace("\\\n", " ")
        for number, line in enumerate(text.splitlines(), 1):
            bare = line.split("#", 1)[0].strip()
            if not bare:
                continue
            name = f"requirements/{lock.name}"
            if "://" in bare or bare.startswith(("-i ", "--index", "--extra-index", "--find-links")):
                yield Finding(
                    "lock_names_host",
                    "error",
                    f"{bare[:100]} names an address",
                    "a lock must install from wherever the reader's pip points",
                    "run scripts/lock.sh",
                    file=name,
                    line=number,
                )
            elif not re.match(r"^[A-Za-z0-9_.-]+(\[[a-z0-9_,-]+\])?==[^\s;]+", bare) or "--hash=sha256:" not in bare:
                yield Finding(
                    "lock_unhashed",
                    "error",
                    f"{bare[:100]} has no exact version or no hash",
                    "pip would take whatever is served under that name",
                    "run scripts/lock.sh",
                    file=name,
                    line=number,
                )


def lock_agrees(pins: Pins, root: Path) -> Iterator[Finding]:
    """A package that both a lock and [python] name has one version."""
    wanted = {name.replace("_", "-"): version for name, version in pins.python.items()}
    for lock in sorted((root / "requirements").glob("*.lock")):
        for match in re.finditer(r"^([A-Za-z0-9_.-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.M):
            name = match.group(1).lower().replace("_", "-")
            if name in wanted and match.group(2) != wanted[name]:
                yield Finding(
                    "pin_lock_differs",
                    "error",
                    f"{name} is {match.group(2)} in {lock.name}, {wanted[name]} in docker/pins.toml",
                    "two answers to one question",
                    "change docker/pins.toml and run scripts/lock.sh",
                    file=f"requirements/{lock.name}",
                )


def judge(pins: Pins, root: Path) -> list[Finding]:
    """All findings of the offline check."""
    return [*pins_elsewhere(pins, root, tracked_files(root)), *lock_findings(root), *lock_agrees(pins, root)]
