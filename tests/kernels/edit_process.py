"""Captures cases from one FlyDSL tree, in the Python that has flydsl. Called by prove_edits.py and the checkout tests.

Usage: python edit_process.py ATOM_PATCH FLYDSL OUT CASE[:LIMIT]...
One process per case, as the lane's stand-ins are process-wide; this script starts them and prints one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

HOT = (120, 125)
"""Scale codes of w13 that put a good part of gate and up beyond a limit of 10."""


def one(flydsl: Path, out: Path, spec: str) -> dict[str, object]:
    """A case by name, `NAME:LIMIT` with that SwiGLU limit, `NAME:0hot` with the same weights and none."""
    from kernel_lane.capture.cases import find
    from kernel_lane.capture.session import capture

    name, _, limit = spec.partition(":")
    case = find(name)
    if limit:
        case = replace(case, swiglu_limit=float(limit.removesuffix("hot")), scale_codes=HOT, golden="")
    return capture(case, flydsl, out)


def main() -> None:
    adapter, flydsl, out, *specs = sys.argv[1:]
    sys.path.insert(0, adapter)
    if len(specs) == 1:
        print("\n" + json.dumps(one(Path(flydsl), Path(out), specs[0])))
        return
    for spec in specs:
        subprocess.run([sys.executable, __file__, adapter, flydsl, f"{out}/{spec.replace(':', '-')}", spec], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip


main()
