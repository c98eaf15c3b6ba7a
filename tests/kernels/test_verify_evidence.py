"""A saved `kernels verify` as evidence: what it proves, and how preflight uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from megamoe.envelope import Outcome, as_json
from megamoe.kernels.verify import not_run
from megamoe.kernels.verify_evidence import judge_saved
from megamoe.preflight.command import _outcome
from megamoe.resources import resource
from megamoe_atom import kernel_edits
from megamoe_atom.problem import Exit, Problem

WANTED = kernel_edits.wanted()
DATA: dict[str, Any] = {
    "ranks": 8,
    "flydsl_commit": kernel_edits.pinned().commit,
    "kernel_edits": sorted(WANTED),
    "cases": [{"case": "golden w8", "bit_equal": True}, {"case": "limit 10", "bit_equal": False}],
}


def saved(**change: Any) -> dict[str, Any]:
    outcome = Outcome("pass", Exit.PASS, "2 cases on 8 ranks", [], DATA | change)
    body: dict[str, Any] = json.loads(as_json("kernels verify", outcome))
    return body


def codes(body: dict[str, Any]) -> list[str]:
    return [f.code for f in judge_saved(body, "v.json", WANTED)[0]]


def test_a_pass_of_the_same_kernels_is_evidence() -> None:
    findings, short = judge_saved(saved(), "v.json", WANTED)
    assert findings == []
    assert (short["ranks"], short["cases"], short["bit_equal_cases"]) == (8, 2, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(saved(flydsl_commit="0" * 40), "KERNELS_OTHER_COMMIT", id="another FlyDSL"),
        pytest.param(saved(kernel_edits=["tile_wait"]), "KERNELS_OTHER_EDITS", id="other edits"),
        pytest.param(saved(kernel_edits=None), "KERNELS_OTHER_EDITS", id="edits unsaid"),
        pytest.param(saved() | {"status": "fail"}, "KERNELS_NOT_VERIFIED", id="it failed"),
        pytest.param(saved() | {"status": "fail", "findings": None}, "KERNELS_NOT_VERIFIED", id="it failed silently"),
        pytest.param(saved(cases=[]), "KERNELS_NOT_VERIFIED", id="a pass of nothing"),
        pytest.param(saved(cases="all"), "KERNELS_NOT_VERIFIED", id="cases in words"),
        pytest.param(json.loads(as_json("kernels verify", not_run("no GPU"))), "KERNELS_NOT_VERIFIED", id="not run"),
    ],
)
def test_anything_else_speaks_against_the_node(body: dict[str, Any], code: str) -> None:
    assert codes(body) == [code]


@pytest.mark.parametrize("body", [[], {}, {"command": "smoke", "schema_version": 1}, saved() | {"schema_version": 9}])
def test_a_file_of_another_kind_is_no_evidence(body: Any) -> None:
    with pytest.raises(Problem) as caught:
        judge_saved(body, "v.json", WANTED)
    assert (caught.value.code, caught.value.exit_code) == ("kernels_evidence", Exit.NO_EVIDENCE)


def test_preflight_judges_it_when_it_is_given(tmp_path: Path) -> None:
    deploy = str(resource("tests/cases/base.yml"))
    (tmp_path / "facts.json").write_text("{}")
    (tmp_path / "good.json").write_text(json.dumps(saved()))
    (tmp_path / "bad.json").write_text(json.dumps(saved(kernel_edits=[])))
    without = _outcome(deploy, str(tmp_path / "facts.json"), False)
    good = _outcome(deploy, str(tmp_path / "facts.json"), False, str(tmp_path / "good.json"))
    bad = _outcome(deploy, str(tmp_path / "facts.json"), False, str(tmp_path / "bad.json"))
    assert "kernels" not in without.data
    assert good.status == without.status
    assert good.data["kernels"]["ranks"] == 8
    assert {f.code for f in bad.findings} - {f.code for f in without.findings} == {"KERNELS_OTHER_EDITS"}
    assert bad.exit_code is Exit.PRECONDITION
