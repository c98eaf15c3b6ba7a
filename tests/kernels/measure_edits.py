"""What the edits cost: stage-1 of production geometries compiled from each tree, read by the linter; rows as JSON.

Usage: python measure_edits.py FLYDSL WORK > rows.json   (MEGAMOE_FLYDSL_PYTHON: the Python that has flydsl 0.2.4)
Code objects that are already in WORK/code are not compiled again (each takes half a minute of one core and more).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from prove_edits import ADAPTER, HERE, TREES, Workshop

PLAN: dict[str, tuple[str, ...]] = {
    "stock": ("pro:1:0", "pro:128:0", "pro:512:0", "pro:8192:0", "flash:1024:0", "flash:8192:0"),
    "swiglu_limit": ("pro:128:0", "pro:8192:0", "flash:8192:0", "pro:8192:10"),
    "publish_order": ("pro:1:0", "pro:128:0", "pro:512:0", "flash:1024:0", "pro:8192:0"),
    "tile_wait": ("pro:128:0", "pro:512:0", "pro:8192:0"),
    "payload_wait": ("pro:128:0",),
    "launch_epoch": ("pro:8192:0",),
    "xcd_guard": ("pro:8192:0",),
    "all": ("pro:1:10", "pro:128:10", "pro:512:10", "pro:8192:10", "flash:1024:10", "flash:8192:10"),
    "async_copy_off": ("pro:8192:10",),
}
EDITS = TREES | {
    "launch_epoch": ("launch_epoch",),
    "payload_wait": ("payload_wait",),
    "xcd_guard": ("xcd_guard",),
    "async_copy_off": ("swiglu_limit", "publish_order", "xcd_guard", "launch_epoch", "payload_wait", "async_copy_off"),
}


COMPILER = HERE.parents[1] / "scripts/megamoe/kernels/compile_stage1.py"
KEPT = ("sha256", "bytes", "instructions", "vgprs", "agprs", "sgprs", "lds", "scratch", "spills", "counted_waits",
        "lds_dma_left")  # fmt: skip


def rows(shop: Workshop) -> list[dict[str, Any]]:
    """One row per tree and geometry: size, registers, and what the linter counted and found."""
    from megamoe.kernels.lint import Image, lint_image

    out = []
    for tree, specs in PLAN.items():
        folder = shop.work / "code" / tree
        missing = [s for s in specs if not (folder / f"{s.replace(':', '_')}.hsaco").exists()]
        if missing:
            where = (str(ADAPTER), str(shop.tree(tree)), str(folder))
            subprocess.run(
                [shop.python, str(COMPILER), *where, *missing],
                check=True, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        for spec in specs:
            model, tokens, limit = spec.split(":")
            data = (folder / f"{spec.replace(':', '_')}.hsaco").read_bytes()
            findings, measured = lint_image(Image(spec, data), cu_count=256)
            row = {key: measured[0][key] for key in KEPT} if measured else {}
            head = {
                "tree": tree,
                "edits": list(EDITS[tree]),
                "model": model,
                "tokens": int(tokens),
                "limit": float(limit),
            }
            out.append(head | row | {"findings": sorted(f.code for f in findings)})
    return out


if __name__ == "__main__":
    sys.path[:0] = [str(ADAPTER), str(HERE.parents[1] / "scripts")]
    TREES |= EDITS
    python = os.environ.get("MEGAMOE_FLYDSL_PYTHON", sys.executable)
    print(json.dumps(rows(Workshop(Path(sys.argv[1]), Path(sys.argv[2]), python)), indent=1))
