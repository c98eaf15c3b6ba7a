#!/usr/bin/env python3
"""Runs one named build step, or writes down that it was not run.

    step.py NAME -- COMMAND...

A step whose needs (steps.toml) are all there is run, and its failure is the build's. One whose needs are not there
fails the build, unless the base is a stand-in (/etc/megamoe/stand_in.json): then NAME is recorded in $MEGAMOE_NOT_RUN,
a folder that ends in the image, which then refuses to serve.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

STAND_IN = Path(os.environ.get("MEGAMOE_STAND_IN", "/etc/megamoe/stand_in.json"))
STEPS = Path(__file__).with_name("steps.toml")


def steps() -> dict[str, dict[str, object]]:
    """Name -> step of steps.toml."""
    return {str(item["name"]): item for item in tomllib.loads(STEPS.read_text(encoding="utf-8"))["step"]}


def main(argv: list[str]) -> int:
    """Exit code of the command, 0 when recorded as not run, 2 for a usage mistake, 1 when a need is missing."""
    if len(argv) < 3 or argv[1] != "--" or argv[0] not in steps():
        print(f"usage: step.py NAME -- COMMAND...; NAME is one of {', '.join(steps())}", file=sys.stderr)
        return 2
    name, command = argv[0], argv[2:]
    needs = steps()[name]["needs"]
    assert isinstance(needs, list)
    missing = [need for need in needs if not Path(need).exists()]
    if not missing:
        print(f"step {name}: {' '.join(command)}", flush=True)
        return subprocess.run(command, check=False).returncode
    if not STAND_IN.is_file():
        print(
            f"error: step {name} needs {', '.join(missing)}, which the base or the mirror has not\n"
            f"  why: without it, {steps()[name]['without']}\n"
            "  fix: build on the pinned base, from a mirror that `megamoe pins verify` accepts",
            file=sys.stderr,
        )
        return 1
    folder = Path(os.environ["MEGAMOE_NOT_RUN"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{', '.join(missing)} missing\n", encoding="utf-8")
    print(f"step {name}: NOT RUN on this stand-in ({', '.join(missing)} missing)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
