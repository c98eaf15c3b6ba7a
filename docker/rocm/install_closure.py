#!/usr/bin/env python3
"""Installs a lock offline: wheels first, then what its authors serve as source only, each file by its locked hash.

install_closure.py NAME PINS LOCK FOLDER
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path


def entries(lock: str) -> dict[str, str]:
    """Normalised package name -> its lines in the lock (version and hashes)."""
    found: dict[str, str] = {}
    joined = lock.replace("\\\n", " ")
    for line in joined.splitlines():
        bare = line.split("#", 1)[0].strip()
        if bare:
            name = re.match(r"[A-Za-z0-9_.-]+", bare)
            if name is None:
                raise ValueError(f"not a requirement: {bare[:80]}")
            found[re.sub(r"[-_.]+", "-", name[0]).lower()] = bare
    return found


def split(lock: str, source_only: list[str]) -> tuple[list[str], list[str]]:
    """Requirements served as wheels, and those served as source only."""
    all_of = entries(lock)
    if unknown := sorted(set(source_only) - set(all_of)):
        raise ValueError(f"source_only names {', '.join(unknown)}, which the lock does not have")
    return [v for k, v in all_of.items() if k not in source_only], [all_of[k] for k in source_only]


def main(argv: list[str]) -> int:
    name, pins, lock, folder = argv
    source_only = tomllib.loads(Path(pins).read_text())["closure"][name]["source_only"]
    wheels, sources = split(Path(lock).read_text(), source_only)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-cache-dir", "--find-links", folder,
           "--require-hashes", "--no-deps", "--no-compile", "--root-user-action=ignore"]  # fmt: skip
    for options, lines in ((["--only-binary=:all:"], wheels), (["--no-build-isolation"], sources)):
        if lines:
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
                wanted.write("\n".join(lines) + "\n")
                wanted.flush()
                subprocess.run([*pip, *options, "-r", wanted.name], check=True)
    print(f"installed {len(wheels)} wheels and {len(sources)} source packages of {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
