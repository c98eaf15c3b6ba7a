"""The part of a ROCm installation that flydsl's compiler needs: device libraries and the linker, nothing more."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from megamoe_atom.problem import Exit, Problem

_LIBRARIES = ("ocml", "ockl", "opencl", "hip")
_HERE = Path(__file__).parent
WAITS = _HERE / "device_wait.ll"


def linker() -> str:
    """ld.lld of LLVM 20 or newer (older ones refuse gfx950 objects): $MEGAMOE_LLD, the versioned names, or ROCm's.

    Raises:
        Problem: no_linker (exit 4).
    """
    names = [
        os.environ.get("MEGAMOE_LLD", ""),
        *(f"ld.lld-{n}" for n in range(25, 19, -1)),
        "/opt/rocm/llvm/bin/ld.lld",
    ]
    for name in filter(None, names):
        found = shutil.which(name)
        if found:
            return found
    raise Problem(
        "no_linker",
        what="no ld.lld of LLVM 20 or newer is installed",
        why="flydsl's compiler runs it to link each kernel for gfx950",
        fix="install lld-22 (Debian security: apt-get install lld-22), or name one with MEGAMOE_LLD",
        exit_code=Exit.PRECONDITION,
    )


def make_tree(folder: Path) -> Path:
    """A folder for ROCM_PATH: our device libraries under amdgcn/bitcode and the linker under llvm/bin.

    `ockl` holds the one function that stage-1 calls; an empty file would link too, and leave the symbol undefined.
    With MEGAMOE_DEVICE_LIBS=DIR the real libraries of DIR are used instead.
    """
    real = os.environ.get("MEGAMOE_DEVICE_LIBS")
    bitcode = folder / "amdgcn" / "bitcode"
    bitcode.mkdir(parents=True, exist_ok=True)
    for name in _LIBRARIES:
        source = Path(real) / f"{name}.bc" if real else _HERE / "device_ockl.ll"
        if real or name == "ockl":
            shutil.copyfile(source, bitcode / f"{name}.bc")
        else:
            (bitcode / f"{name}.bc").write_text("; nothing of this library is called\n", encoding="utf-8")
    program = folder / "llvm" / "bin" / "ld.lld"
    program.parent.mkdir(parents=True, exist_ok=True)
    if not program.exists():
        program.symlink_to(linker())
    return folder


def linker_version() -> str:
    done = subprocess.run([linker(), "--version"], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip()
