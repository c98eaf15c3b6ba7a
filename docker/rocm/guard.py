#!/usr/bin/env python3
"""Says whether each pinned Python package is still the pinned one, byte for byte. Run after every install.

    guard.py PINS [WHEEL...]

For each pin that is installed: its version is the pinned one, and every file of its RECORD has its recorded hash. For
each WHEEL: what is installed is that file's content, so a reinstall of the same version from elsewhere is noticed. On a
stand-in base torch and triton are compared by their public version only. Exit 1 with every difference.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

STAND_IN = Path(os.environ.get("MEGAMOE_STAND_IN", "/etc/megamoe/stand_in.json"))


def pinned(pins: dict[str, Any]) -> dict[str, str]:
    """Distribution name -> version that the pins give."""
    git, python = pins["git"], pins["python"]
    return {
        "torch": pins["base"]["torch"],
        "triton": python["triton"],
        "pybind11": python["pybind11"],
        "transformers": python["transformers"],
        "lm-eval": python["lm_eval"],
        "flydsl": git["flydsl"]["version"],
        pins["wheel"]["mori"]["distribution"]: pins["wheel"]["mori"]["version"],
        "amd-aiter": git["aiter"]["version"],
        "atom": git["atom"]["version"],
    }


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def changed_files(dist: Distribution) -> Iterator[str]:
    """Files of an installed distribution that are missing or have another hash than its RECORD says."""
    for entry in dist.files or []:
        # WHEEL is not code, and mori's nightly was given another platform tag there after its RECORD was made.
        if entry.hash is None or entry.hash.mode != "sha256" or str(entry).endswith(".dist-info/WHEEL"):
            continue
        path = Path(str(dist.locate_file(entry)))
        if not path.is_file():
            yield f"{entry} is missing"
        elif _digest(path.read_bytes()) != f"sha256={entry.hash.value}":
            yield f"{entry} was changed after it was installed"


def differs_from_wheel(wheel: Path) -> Iterator[str]:
    """Files of a wheel whose installed copy is missing or another one."""
    name = wheel.name.split("-")[0]
    with zipfile.ZipFile(wheel) as archive:
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            yield f"{wheel.name} is not installed"
            return
        for member in archive.namelist():
            # RECORD is written anew by the installer; what is below *.data goes elsewhere.
            if member.endswith(("/", ".dist-info/RECORD")) or ".data/" in member:
                continue
            path = Path(str(dist.locate_file(member)))
            if not path.is_file() or path.read_bytes() != archive.read(member):
                yield f"{member} is not the one of {wheel.name}"


def faults(pins: dict[str, Any], wheels: list[Path], *, stand_in: bool) -> list[str]:
    """Every difference, one line each."""
    found = []
    for name, want in pinned(pins).items():
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            continue  # not installed yet; the last guard is given the wheels that must be there
        have = dist.version
        short = stand_in and name in ("torch", "triton")
        # torch's own version and its package's differ by a label that the base's build added; in front is the release.
        if have.split("+")[0] != want.split("+")[0] if short or name == "torch" else have != want:
            found.append(f"{name} is {have}, pinned is {want}")
        found += [f"{name}: {line}" for line in list(changed_files(dist))[:5]]
    for wheel in wheels:
        found += list(differs_from_wheel(wheel))[:5]
    return found


def main(argv: list[str]) -> int:
    pins = tomllib.loads(Path(argv[0]).read_text(encoding="utf-8"))
    found = faults(pins, [Path(w) for w in argv[1:]], stand_in=STAND_IN.is_file())
    if found:
        print(
            "error: "
            + "\nerror: ".join(found)
            + "\n  why: an install replaced a pinned package, and the image would be "
            "another one than the pins say\n  fix: install with --no-deps, and find out which package's set-up did it",
            file=sys.stderr,
        )
        return 1
    print("every pinned package is as pinned")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
