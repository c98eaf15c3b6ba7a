"""The folder's helpers are importable; captures of real kernels are made once for all tests."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from kernel_lane.bundle import Bundle
from kernel_lane.execute import Executor
from real import checkout, python_with

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="session")
def captured(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """case name -> Executor, through the command line."""
    flydsl = checkout("MEGAMOE_FLYDSL_DIR")
    python = python_with("flydsl.expr.buffer_ops, torch", "MEGAMOE_FLYDSL_PYTHON")
    # MEGAMOE_LANE_BUNDLES keeps the captures from run to run: each compiles kernels for half a minute or more.
    kept = os.environ.get("MEGAMOE_LANE_BUNDLES")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("bundles")

    @functools.cache
    def capture(case: str, *, golden: bool = False, exit_code: int = 0) -> Executor:
        if (folder / case / "bundle.json").is_file():
            return Executor(Bundle.read(folder / case))
        words = ["--golden", str(GOLDEN / f"{case}.npz")] if golden else []
        done = subprocess.run(
            [sys.executable, "-m", "megamoe", "kernels", "capture", "--flydsl", str(flydsl), "--case", case, "--out",
            str(folder / case),
             "--python", python, "--json", *words], capture_output=True, text=True, timeout=2400)  # fmt: skip
        assert done.returncode == exit_code, done.stdout[-2000:]
        assert json.loads(done.stdout)["data"]["equal_in_order"] == (exit_code == 0)
        return Executor(Bundle.read(folder / case))

    return capture
