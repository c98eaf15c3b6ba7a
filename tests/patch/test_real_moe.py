"""Our classes inside ATOM's real, edited moe.py: construction, both weight hooks twice, apply() on eight ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from megamoe.patch import command
from megamoe_atom.limits import MoeGeometry, megamoe_heap_bytes
from trees import checkout

pytestmark = pytest.mark.checkout


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import shutil

    root = checkout("MEGAMOE_ATOM_DIR")
    to = tmp_path_factory.mktemp("edited")
    shutil.copytree(root / "atom", to / "atom")
    command.move(command.job(to), undo=False)
    return to


def scenario(tree: Path, name: str) -> dict[str, object]:
    """One run of atom_process.py, in the Python that has ATOM's own dependencies."""
    python = os.environ.get("MEGAMOE_ATOM_PYTHON", sys.executable)
    probe = subprocess.run([python, "-c", "import transformers"], capture_output=True, timeout=120)
    if probe.returncode:
        pytest.skip(f"{python} has no transformers, which ATOM imports; name one with MEGAMOE_ATOM_PYTHON")
    done = subprocess.run(
        [python, str(Path(__file__).with_name("atom_process.py")), str(tree), name],
        capture_output=True, text=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_not_requested_atom_constructs_its_own_class_and_loads_nothing_heavy(edited: Path) -> None:
    result = scenario(edited, "not_requested")
    assert result["exact"] is True
    assert result["loaded"] == ["megamoe_atom.factory", "megamoe_atom.problem"]


def test_requested_eight_ranks_run_on_the_adapter(edited: Path) -> None:
    result = scenario(edited, "requested")
    assert result["class"] == "MegaMxfp4MoEMethod"
    assert result["subclass"] and result["experts"] and result["not_a_module"]
    assert result["emptied"], "raw weights and raw scales are released"
    assert result["instances_per_rank"] == [1] * 8
    assert result["mori_handles"] == 0, "no mori op is built"
    assert result["manager_touched"] == 16, "once per layer and rank, although the hook ran twice"
    assert result["rel_l2"] < 0.10
    assert result["exceeded"] == "mtpr_exceeded"
    assert result["kernels_normal_tensors"], "the kernel's buffers are made outside inference mode"


def test_launches_that_cannot_work_are_refused_by_code(edited: Path) -> None:
    result = scenario(edited, "refusals")
    assert all(code in found for code, found in result.items()), result  # type: ignore[operator]
    assert len(result) == 8


def test_a_whole_start_goes_through_make_runtime_and_leaves_evidence_of_every_rank(edited: Path) -> None:
    result = scenario(edited, "started")
    whole, spoiled = result["whole"], result["spoiled"]
    assert isinstance(whole, dict) and isinstance(spoiled, dict)
    assert whole["states"] == ["passed"] and whole["ranks"] == list(range(8))
    assert whole["layers"] == [["layers.0.ffn.experts", "layers.1.ffn.experts"]]
    assert whole["instances"] == [1] * 8 and whole["mori_handles"] == 0
    assert whole["ids_varied"], "the warm-up's ids differ, and are the same on every rank"
    assert whole["worst"] < 0.10 and whole["figures"] == [2] * 8
    assert whole["extremes"] == ["one_expert"] and whole["buckets"] == [1, 2, 4, 8, 16]
    assert whole["heap"] == [2**30, megamoe_heap_bytes(MoeGeometry(512, 256, 16, 8, 8, 16))]
    assert whole["mtpr"] == [16] and whole["swiglu_limit"] == 10.0
    assert {"adapter", "flydsl_version", "flydsl_commit", "torch_version"} <= set(whole["versions"])
    assert len(whole["edits"]) == 6
    assert all(counted == ran > 0 for counted, ran in whole["launches"]), "graphs that replay are counted"

    assert spoiled["states"] == ["failed"], "every rank's evidence says so"
    (what,) = spoiled["problems"]
    assert "layers.1.ffn.experts" in what and "one_expert" in what and "rank 3: experts [6]" in what
