"""What somebody on the node saw before and after a run decides whether its answers are of one server, fused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from megamoe.gate.evidence import Evidence, add_watch
from megamoe.gate.faults import run_faults
from megamoe.gate.policy import load_policy
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.status import RankStatus

RUN = {"run_id": "r", "server_started": 1786500000.0, "client_exit": 0, "results_dir": "."}


def saved(path: Path, launches: int, ranks: int = 2, pid: int = 7) -> str:
    """What `megamoe status --json` prints, in a file."""
    found = []
    for rank in range(ranks):
        status = RankStatus(rank, 2, {"hidden": 768}, 512, layers_converted=["layers.0"], pid=pid)
        status.launches_per_layer["layers.0"] = status.launches = launches
        status.started_at = 1786500000.0
        found.append(status.as_dict())
    path.write_text(json.dumps({"schema_version": 1, "command": "status", "data": {"ranks": found}}))
    return str(path)


def faults_of(tmp_path: Path, before: dict[str, Any], after: dict[str, Any], at_end: str | None = None) -> list[str]:
    evidence = Evidence(run=dict(RUN))
    files = saved(tmp_path / "before", **before), saved(tmp_path / "after", **after)
    add_watch(evidence, *files, at_end)
    return [f.code for f in run_faults(load_policy("rehearsal"), evidence, {}, [])]


@pytest.mark.parametrize(
    ("after", "at_end", "found"),
    [
        pytest.param({"launches": 20}, "1786500000", [], id="same processes, counters grew"),
        pytest.param({"launches": 10}, None, ["FUSED_PATH_IDLE"], id="counters stood still"),
        pytest.param({"launches": 20, "pid": 8}, None, ["SERVER_RESTARTED"], id="other processes"),
        pytest.param({"launches": 20, "ranks": 1}, None, ["SERVER_RESTARTED"], id="a rank is gone"),
        pytest.param({"launches": 20}, "2026-08-12T03:00:00.5Z", ["SERVER_RESTARTED"], id="another start time"),
    ],
)
def test_the_ranks_of_before_and_after_are_compared(
    tmp_path: Path, after: dict[str, Any], at_end: str | None, found: list[str]
) -> None:
    assert faults_of(tmp_path, {"launches": 10}, after, at_end) == found


def test_evidence_that_names_no_rank_is_no_evidence(tmp_path: Path) -> None:
    assert faults_of(tmp_path, {"launches": 1, "ranks": 0}, {"launches": 2, "ranks": 0}) == ["FUSED_NO_EVIDENCE"]


def test_one_look_without_the_other_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        add_watch(Evidence(run=dict(RUN)), saved(tmp_path / "x", 1), None, None)
    assert (caught.value.code, caught.value.exit_code) == ("watch_incomplete", Exit.REFUSED)
    with pytest.raises(Problem) as caught:
        add_watch(Evidence(), None, None, "1786500000")
    assert caught.value.code == "watch_incomplete"


def test_a_file_that_holds_a_refusal_instead_of_ranks_is_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "refused").write_text(json.dumps({"schema_version": 1, "command": "status", "data": {}}))
    with pytest.raises(Problem) as caught:
        add_watch(Evidence(run=dict(RUN)), str(tmp_path / "refused"), saved(tmp_path / "x", 1), None)
    assert caught.value.exit_code == Exit.NO_EVIDENCE
