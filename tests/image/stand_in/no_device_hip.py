"""Writes hip.c and hip.map for a libamdhip64 in which every call that FOLDER's native code imports says "no device".

    python3 no_device_hip.py FOLDER OUT_DIR

The names and symbol versions are read from the ELF files themselves (nm), so the library fits whatever is pinned.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100  # hipErrorNoDevice


def imports(folder: Path) -> dict[str, set[str]]:
    """Symbol version -> names of all undefined hip functions below folder."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.rglob("*.so*")):
        listed = subprocess.run(
            ["nm", "-D", "--undefined-only", str(path)], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for line in listed.splitlines():
            name, _, version = line.split()[-1].partition("@")
            if name.startswith(("hip", "__hip")) and version.startswith("hip_"):
                found[version].add(name)
    return found


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    found = imports(folder)
    if not found:
        sys.exit(f"no hip import found below {folder}")
    out.mkdir(parents=True, exist_ok=True)
    names = sorted(set().union(*found.values()))
    strings = {"hipGetErrorString", "hipGetErrorName"}
    lines = [
        f'const char *{name}(int e) {{ return "no device: stand-in"; }}'
        if name in strings
        else f"int {name}() {{ return {NO_DEVICE}; }}"
        for name in names
    ]
    (out / "hip.c").write_text("\n".join(lines) + "\n")
    blocks = [f"{version} {{ global: {'; '.join(sorted(found[version]))}; }};" for version in sorted(found)]
    (out / "hip.map").write_text("\n".join(blocks) + "\n")


if __name__ == "__main__":
    main()
