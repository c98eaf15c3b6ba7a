"""The edits on real ATOM trees. MEGAMOE_ATOM_DIR: the pinned commit. _RC0_DIR and _MAIN_DIR: v0.1.6-rc0 and main."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from megamoe.patch import command
from megamoe.patch.contract import check_contract
from megamoe_atom.problem import Problem
from trees import EDITED, checkout, contents, copy_of

pytestmark = pytest.mark.checkout


@pytest.fixture
def atom(tmp_path: Path) -> Path:
    return copy_of(checkout("MEGAMOE_ATOM_DIR"), tmp_path)


def test_apply_twice_check_compile_and_revert_byte_identical(atom: Path) -> None:
    before = contents(atom)
    assert command.move(command.job(atom), undo=False).data["changed"] == sorted(EDITED)
    assert command.move(command.job(atom), undo=False).data["changed"] == []
    assert command.check(command.job(atom), allow_drift=False).status == "pass"
    for name in EDITED:
        compile((atom / name).read_bytes(), name, "exec")
    command.move(command.job(atom), undo=True)
    assert contents(atom) == before


def test_only_two_files_and_five_places_change(atom: Path) -> None:
    text = command.diff(command.job(atom), allow_drift=False).text
    added = [line for line in text.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert len(added) == 5
    assert all("megamoe_atom" in a or "mxfp4_moe_method" in a or "warmup_token_ids" in a for a in added)


def test_a_patch_tool_accepts_the_diff(atom: Path) -> None:
    text = command.diff(command.job(atom), allow_drift=False).text
    subprocess.run(
        ["patch", "-p1", "--dry-run"], input=text.encode(), cwd=atom, check=True, timeout=20, capture_output=True
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("atom/config.py", "    eplb_enable: bool", "    eplb_on: bool", "eplb_enable"),
        ("atom/models/deepseek_v4.py", "self.experts.swiglu_limit =", "self.experts.limit =", "swiglu_limit"),
        (EDITED[0], "    def use_all2all_kernels", "    def use_mori_all2all", "use_all2all_kernels"),
        (EDITED[0], "topk_ids=topk_ids,\n            inplace", "ids=topk_ids,\n            inplace", "topk_ids"),
        (EDITED[0], "self.fused_experts: FusedMoEModularKernel | None = None", "self.experts = None", "fused_experts"),
        (EDITED[0], "max_num_tokens=atom_config", "max_tokens=atom_config", "max_num_tokens"),
        (EDITED[0], "self.moe_config = moe", "self.config_of_moe = moe", "moe_config"),
        (EDITED[0], 'register_parameter("w2_weight_scale"', 'register_parameter("w2_scale"', "w2_weight_scale"),
        (EDITED[1], "        self.warmup_model()", "        self.warm_up()", "self.warmup_model"),
        (EDITED[0], "class Mxfp4MoEMethod(FusedMoEMethodBase)", "class Mxfp4MoEMethod(object)", "derives from"),
    ],
    ids=["config field", "assignment", "property", "keyword", "attribute", "config keyword", "config of the layer",
         "a weight's name", "the call of the warm-up", "base class"],
)
def test_the_contract_names_what_moved(atom: Path, file: str, old: str, new: str, named: str) -> None:
    path = atom / file
    source = path.read_text(encoding="utf-8")
    assert old in source
    path.write_text(source.replace(old, new), encoding="utf-8")
    broken, _ = check_contract(atom)
    assert len(broken) == 1
    assert named in broken[0].what


@pytest.mark.parametrize(
    ("variable", "moved"),
    [
        ("MEGAMOE_ATOM_RC0_DIR", {"use_triton_decode", "num_redundant_experts", "eplb_enable"}),
        ("MEGAMOE_ATOM_MAIN_DIR", {"moe-construction matches 0 times", "num_fused_shared_experts", "warmup_model"}),
    ],
    ids=["v0.1.6-rc0", "main"],
)
def test_another_atom_is_refused_and_with_allow_drift_reported(tmp_path: Path, variable: str, moved: set[str]) -> None:
    """moved: what no longer is where the adapter and its edits look for it, all of it."""
    other = copy_of(checkout(variable), tmp_path)
    before = contents(other)
    with pytest.raises(Problem) as caught:
        command.move(command.job(other), undo=False)
    assert {r.code for r in caught.value.reasons} == {"pre_image"}
    assert all(name in str(caught.value) for name in EDITED)
    findings = command.check(command.job(other), allow_drift=True).findings
    assert {f.file for f in findings if f.code == "drift"} == set(EDITED)
    named = [f.what for f in findings if f.severity == "error"]
    assert len(named) == len(moved)
    assert all(any(name in what for what in named) for name in moved), named
    assert contents(other) == before
