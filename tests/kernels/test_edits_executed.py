"""Each edit of FlyDSL executed without and with, in small: the figures of the page come from prove_edits.py in full.

Needs a FlyDSL checkout (MEGAMOE_FLYDSL_DIR) and a Python with flydsl 0.2.4 (MEGAMOE_FLYDSL_PYTHON). Each capture
compiles kernels for ten seconds and more, so the eight-rank experiments are left to prove_edits.py, and
MEGAMOE_EDITS_WORK names a folder that keeps trees and bundles (prove_edits.py's WORK) from run to run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_lane.bundle import Bundle
from megamoe.kernels.lint import collect, judge
from prove_edits import EXPERIMENTS, Experiment, Workshop, prove

pytestmark = [pytest.mark.checkout, pytest.mark.slow]
SEEDS = 50


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    root = os.environ.get("MEGAMOE_FLYDSL_DIR")
    if not root:
        pytest.skip("MEGAMOE_FLYDSL_DIR is not set: these tests capture kernels of a real FlyDSL checkout")
    python = os.environ.get("MEGAMOE_FLYDSL_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import flydsl.expr.buffer_ops"], capture_output=True, timeout=120).returncode:
        pytest.skip(f"{python} has no flydsl 0.2.x; name one that has with MEGAMOE_FLYDSL_PYTHON")
    kept = os.environ.get("MEGAMOE_EDITS_WORK")
    return Workshop(Path(root), Path(kept) if kept else tmp_path_factory.mktemp("edits"), python)


@pytest.mark.parametrize(
    "experiment",
    [e for e in EXPERIMENTS if not e.case.startswith("w8")],
    ids=lambda e: f"{e.edit} {e.case} {e.schedules[0]} {e.start}",
)
def test_what_goes_wrong_without_the_edit_is_right_with_it(shop: Workshop, experiment: Experiment) -> None:
    figures = prove(shop, experiment, SEEDS, print)
    assert figures["with"]["wrong"] == figures["with"]["hung"] == 0, figures
    assert bool(figures["without"]["wrong"] + figures["without"]["hung"]) == experiment.shows, figures
    if experiment.after == "all":
        bundle = Bundle.read(shop.bundle("all", experiment.case))
        assert judge(collect([bundle.folder]), cu_count=bundle.case["cu"]).findings == []
