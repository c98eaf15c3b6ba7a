"""Golden vectors whose inputs come by formula: a file holds only what the executed kernels gave, and from what.

`python -m kernel_lane.golden BUNDLE FILE` executes a captured bundle in order and writes the outputs of every forward.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from megamoe_atom.problem import Exit, Problem
from numpy.typing import NDArray

from kernel_lane.bundle import Bundle
from kernel_lane.execute import Executor
from kernel_lane.judge import compare

_KEPT = ("name", "flydsl", "linker", "edits", "launches", "instructions")


def write(bundle_folder: Path, file: Path) -> None:
    """Executes a bundle and stores its outputs, bf16 bits as uint16, one array per forward and rank, and provenance.

    Raises:
        Problem: golden_differs, when the execution stops or is not what the bundle expects: no vector is made of that.
    """
    bundle = Bundle.read(bundle_folder)
    run = Executor(bundle).run()
    wrong = compare(bundle, run.results)
    if run.stop or wrong:
        raise Problem(
            "golden_differs",
            what=f"{bundle_folder}: {run.stop or [d.name for d in wrong]}",
            why="a golden vector is what the kernels and the reference agree on",
            fix="find out which of them is wrong",
            exit_code=Exit.CHECK_FAILED,
        )
    arrays: dict[str, Any] = {name: data.view(np.uint16) for name, data in run.results.items()}
    codes = sorted({launch["code"] for s in bundle.steps for launch in s.get("launches", [])})
    provenance = {k: bundle.case[k] for k in _KEPT} | {"code_objects": [Path(c).stem for c in codes]}
    np.savez_compressed(file, provenance=np.array(json.dumps(provenance)), **arrays)


def read(file: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.uint16]]]:
    """(provenance, {"forward0.rank0": bits [n * H]})."""
    z = np.load(file)
    return json.loads(str(z["provenance"])), {k: z[k] for k in z if k != "provenance"}


if __name__ == "__main__":
    try:
        write(Path(sys.argv[1]), Path(sys.argv[2]))
    except Problem as problem:
        sys.exit(str(problem))
