#!/usr/bin/env python3
"""Asserts that the base is what docker/pins.toml says, before anything is put on it.

    check_base.py PINS refuse|allow

The second word says what to do with a stand-in base (/etc/megamoe/stand_in.json): refuse it, or allow it for a build
whose image then refuses to serve. On a stand-in only the layout, Python and the API versions of torch and triton are
required.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

MIN_GLIBC = (2, 38)  # mori's wheel: GLIBC_2.38
ROCM_FILES = ("amdgcn/bitcode/ockl.bc", "amdgcn/bitcode/ocml.bc", "llvm/bin/ld.lld", "lib/libamdhip64.so.7")
COMPILERS = ("bin/hipcc", "llvm/bin/clang", "llvm/bin/opt", "llvm/bin/llvm-link")


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def faults(pins: dict[str, Any], *, stand_in: bool, rocm: Path = Path("/opt/rocm")) -> list[str]:
    """What differs from the pins, one line each, with the values."""
    import torch

    base, triton = pins["base"], pins["python"]["triton"]
    found = []

    def require(what: str, have: str, want: str) -> None:
        if have != want:
            found.append(f"{what} is {have}, pinned is {want}")

    def short(text: str) -> str:
        return text.split("+")[0] if stand_in else text

    require("python", f"{sys.version_info[0]}.{sys.version_info[1]}", base["python"])
    require("torch.__version__", short(torch.__version__), short(base["torch"]))
    require("triton", short(installed("triton")), short(triton))
    if "rocm" not in triton:
        found.append(f"python.triton = {triton} names no ROCm build: upstream's Triton has no gluon kernels for gfx950")
    if not stand_in:
        require("torch.version.hip", str(torch.version.hip), base["hip"])
    glibc = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2])
    if glibc < MIN_GLIBC:
        found.append(f"glibc is {glibc[0]}.{glibc[1]}, mori's wheel needs {MIN_GLIBC[0]}.{MIN_GLIBC[1]} or newer")
    if sys.prefix != "/opt/venv":
        found.append(f"python of PATH belongs to {sys.prefix}, not to /opt/venv")
    for name in (*ROCM_FILES, *(() if stand_in else COMPILERS)):
        if not (rocm / name).exists():
            found.append(f"{rocm / name} is missing")
    for other in ("flydsl", "amd-aiter", "atom", "amd-mori", "amd-mori-nightly"):
        if installed(other) != "not installed":
            found.append(f"{other} {installed(other)} is already in the base; it would mix with the pinned one")
    return found


def main(argv: list[str]) -> int:
    if len(argv) != 2 or argv[1] not in ("refuse", "allow"):
        print("usage: check_base.py PINS refuse|allow", file=sys.stderr)
        return 2
    pins = tomllib.loads(Path(argv[0]).read_text(encoding="utf-8"))
    marker = Path(os.environ.get("MEGAMOE_STAND_IN", "/etc/megamoe/stand_in.json"))
    stand_in = marker.is_file()
    if stand_in and argv[1] == "refuse":
        print(
            f"error: this base is a stand-in: {json.loads(marker.read_text())}\n"
            "  why: an image built on it cannot serve\n"
            "  fix: build on the pinned base, or say --build-arg STAND_IN=allow to prove the build only",
            file=sys.stderr,
        )
        return 1
    if found := faults(pins, stand_in=stand_in):
        print(
            "error: " + "\nerror: ".join(found) + "\n  why: the image was validated on the pinned base only\n"
            "  fix: build on base.name@base.digest of docker/pins.toml",
            file=sys.stderr,
        )
        return 1
    print("the base is " + ("a stand-in with the pinned layout" if stand_in else "the pinned one"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
