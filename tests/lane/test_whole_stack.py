"""ATOM's real moe.py, our edits and adapter, FlyDSL's real host code, its kernels executed: two ranks, every bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from real import checkout, python_with

pytestmark = [pytest.mark.checkout, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def patch(option: str, tree: Path) -> None:
    """All of our edits of one upstream tree, through the command line."""
    done = subprocess.run(
        [sys.executable, "-m", "megamoe", "patch", "apply", option, str(tree)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("limit", [0.0, 10.0], ids=["plain kernels", "edited kernels with DeepSeek-V4's SwiGLU limit"])
def test_two_ranks_of_the_whole_stack_equal_the_reference_in_every_bit(tmp_path: Path, limit: float) -> None:
    atom, flydsl = checkout("MEGAMOE_ATOM_DIR"), checkout("MEGAMOE_FLYDSL_DIR")
    python = python_with("flydsl.expr.buffer_ops, transformers, psutil, xxhash, msgspec", "MEGAMOE_FLYDSL_PYTHON")
    shutil.copytree(atom / "atom", tmp_path / "atom")
    patch("--atom", tmp_path)
    if limit:
        shutil.copytree(flydsl / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
        flydsl = tmp_path
        patch("--flydsl", flydsl)
    paths = [str(ROOT / "atom_patch"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [python, str(Path(__file__).with_name("stack_process.py")), str(tmp_path), str(flydsl),
        str(ROOT / "tests" / "patch"), str(limit)],
        capture_output=True, text=True, timeout=1800, env={**os.environ, "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["method"] == "MegaMxfp4MoEMethod"
    assert result["kernel"] == "kernels.mega_moe.mega_moe.MegaMoE"
    assert sorted(result["instances"]) == [0, 1], "one instance per rank serves both layers"
    assert result["raw_weights_left"] == 0
    assert result["launch_steps"] == 3 * 2 * 4, "three steps, two layers, four kernels"
    assert result["compared"] == 2 * 512 * (13 + 2 + 4)
    assert result["differing"] == 0
    assert (result["differing_without_limit"] > result["compared"] // 2) == (limit > 0), "the limit must be reached"
