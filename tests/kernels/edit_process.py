"""Captures one case from one FlyDSL tree, in the Python that has flydsl. Called by prove_edits.py.

Usage: python edit_process.py ATOM_PATCH FLYDSL OUT CASE[:LIMIT|:hot]
CASE:LIMIT is the case with that SwiGLU limit and weights that reach it, CASE:hot the same weights without a limit.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

ADAPTER, FLYDSL, OUT, SPEC = sys.argv[1:]
sys.path.insert(0, ADAPTER)
from kernel_lane.capture.cases import find  # noqa: E402 - after the path
from kernel_lane.capture.session import capture  # noqa: E402

HOT = (120, 125)
"""Scale codes of w13 that put a good part of gate and up beyond a limit of 10."""
WHOLE = {"dense", "dense_compact"}
"""On 8 compute units the swizzle loses no tile, so these show the tile's wait and nothing else."""

name, _, limit = SPEC.partition(":")
case = find(name)
if name in WHOLE:
    case = replace(case, cu=8)
if limit:
    case = replace(case, swiglu_limit=0.0 if limit == "hot" else float(limit), scale_codes=HOT, golden="")
print("\n" + json.dumps(capture(case, Path(FLYDSL), Path(OUT))))
