"""A saved `kernels verify` as evidence: what it proves, and how preflight uses it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from megamoe.envelope import Outcome, as_json
from megamoe.kernels.verify import not_run
from megamoe.kernels.verify_evidence import judge_saved
from megamoe.preflight.command import _outcome
from megamoe.resources import resource
from megamoe.smoke import run
from megamoe.smoke.run import Ask
from megamoe_atom import kernel_edits
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.status import RankStatus, StatusWriter

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "validation"))
from fake_server import FakeServer

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


def rank_status(edits: frozenset[str]) -> RankStatus:
    return RankStatus(rank=0, ep_size=1, geometry={}, mtpr=16, kernel_edits=sorted(edits))


@pytest.mark.parametrize(
    ("body", "edits", "state", "word"),
    [
        pytest.param(saved(), WANTED, "pass", "1 of 2 cases bit-equal on 8 ranks", id="of these kernels"),
        pytest.param(saved(), frozenset(), "fail", "this launch asks for none", id="of kernels with other edits"),
        pytest.param(saved() | {"status": "fail"}, WANTED, "fail", "its status is 'fail'", id="it failed"),
        pytest.param({"command": "smoke"}, WANTED, "fail", "is no result of", id="another file"),
        pytest.param(saved(), None, "not_run", "nobody knows which kernels", id="a server without evidence"),
    ],
)
def test_smoke_judges_it_against_the_kernels_that_serve(
    body: Any, edits: frozenset[str] | None, state: str, word: str
) -> None:
    evidence = [] if edits is None else [rank_status(edits)]
    have, told, _ = run._kernels(body, "v.json", evidence)
    assert have == state and word in told


def test_smoke_shows_it_as_a_check_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read before the server is asked, judged with its evidence, and in the data that the report shows."""
    monkeypatch.setattr(run, "EVIDENCE_PATIENCE_S", 0.1)
    monkeypatch.setattr(run, "CHECKS", ())
    StatusWriter(tmp_path / "status", rank_status(WANTED))
    (tmp_path / "v.json").write_text(json.dumps(saved()))
    outcome = run.run_smoke(Ask(FakeServer().url, str(tmp_path / "status"), kernels=str(tmp_path / "v.json")))
    assert {c["name"]: c["status"] for c in outcome.data["checks"]}["verified kernels"] == "pass"
    assert outcome.data["kernels"]["ranks"] == 8
    (tmp_path / "v.json").write_text("{")
    with pytest.raises(Problem):
        run.run_smoke(Ask("http://nowhere.invalid:1", kernels=str(tmp_path / "v.json")))


def test_preflight_judges_it_when_it_is_given(tmp_path: Path) -> None:
    deploy = str(resource("tests/cases/base.yml"))
    (tmp_path / "facts.json").write_text('{"numa_balancing": 0}')  # one fact: none at all is no evidence
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
