"""Builds our C with the system's compiler, once per content, into a per-user cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from megamoe_atom.problem import Exit, Problem


def compiler() -> str:
    """The C compiler: $CC, else `cc`.

    Raises:
        Problem: no_compiler (exit 4).
    """
    name = os.environ.get("CC", "cc")
    found = shutil.which(name)
    if found is None:
        raise Problem(
            "no_compiler",
            what=f"there is no C compiler {name!r} on PATH",
            why="the interpreter's core and the stand-in HIP library are C sources, compiled on first use",
            fix="install gcc (Debian: apt-get install gcc libc6-dev), or name another with CC",
            exit_code=Exit.PRECONDITION,
        )
    return found


def cache_folder() -> Path:
    """Where compiled libraries are kept: $MEGAMOE_LANE_CACHE, else megamoe-lane in the user's cache folder."""
    given = os.environ.get("MEGAMOE_LANE_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "megamoe-lane"
    base.mkdir(parents=True, exist_ok=True)
    return base


def build(name: str, source: str, flags: list[str], *, extra: dict[str, str] | None = None) -> Path:
    """Compiles one C source to a shared library.

    Args:
        name: file name of the library, kept as it is (a loader may look for exactly this name).
        extra: further files (name -> text) that the flags refer to by name; the compiler runs in their folder.
    Returns:
        path of the library, in a folder named after the content of all that went in.
    Raises:
        Problem: no_compiler, compile_failed (with the compiler's words).
    """
    cc = compiler()
    version = subprocess.run([cc, "--version"], capture_output=True, text=True, timeout=30).stdout.splitlines()[:1]
    key = hashlib.sha256(repr((source, flags, sorted((extra or {}).items()), version, _machine())).encode()).hexdigest()
    folder = cache_folder() / key[:24]
    if (folder / name).is_file():
        return folder / name
    # Made aside and renamed: two processes that build at once never see half a library.
    work = Path(tempfile.mkdtemp(prefix="build-", dir=cache_folder()))
    try:
        (work / "source.c").write_text(source, encoding="utf-8")
        for file, text in (extra or {}).items():
            (work / file).write_text(text, encoding="utf-8")
        done = subprocess.run(
            [cc, "-shared", "-fPIC", "-o", name, "source.c", *flags],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=900,
        )
        if done.returncode:
            raise Problem(
                "compile_failed",
                what=f"{cc} refused {name}: {done.stderr.strip()[-2000:]}",
                why="without it no kernel can be executed",
                fix="use gcc 12 or newer (CC names it), and report this if it persists",
                exit_code=Exit.OUR_BUG,
            )
        try:
            work.rename(folder)
        except OSError:
            if not (folder / name).is_file():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder / name


def _machine() -> str:
    """The processor's features: code for the native machine must not be loaded on another that shares the cache."""
    try:
        flags = [
            line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))
        ]
    except OSError:
        return os.uname().machine
    return flags[0] if flags else os.uname().machine
