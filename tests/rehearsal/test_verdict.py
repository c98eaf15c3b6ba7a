"""What a rehearsal concludes from Ansible's events, from the gateway and from the nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from megamoe.rehearse.judge import judge_run, look_at
from megamoe.rehearse.play import PlayResult, read_events
from megamoe.rehearse.probe import up_servers
from megamoe.rehearse.settings import FAULTS, Settings
from megamoe_atom.problem import Exit

SETTINGS = Settings(root=Path("/nowhere"))
BOTH = ["node1", "node2"]
HOSTS = {h: {"ok": 9, "changed": 3, "failures": 0} for h in (*BOTH, "gateway")}
QUIET = {h: {"ok": 9, "changed": 0, "failures": 0} for h in (*BOTH, "gateway")}
GATE = json.dumps(
    {
        "command": "gate",
        "status": "fail",
        "summary": "FAIL",
        "findings": [
            {"code": "note", "severity": "warn", "what": "w", "why": "w", "fix": "f"},
            {"code": "below_floor", "severity": "error", "what": "0.02 < 0.40", "why": "y", "fix": "f"},
        ],
    }
)


def failure(**more: Any) -> dict[str, Any]:
    return {"event": "failed", "host": "node1", "task": "Run the gate", "msg": "non-zero return code", **more}


def test_a_first_good_run_passes_and_says_how_many_nodes_serve(tmp_path: Path) -> None:
    outcome = judge_run(SETTINGS, PlayResult(0, HOSTS), BOTH, [], tmp_path)
    assert (outcome.status, outcome.exit_code) == ("pass", Exit.PASS)
    assert "2 nodes" in outcome.summary


def test_a_second_run_says_that_nothing_changed_on_any_host(tmp_path: Path) -> None:
    assert "changed=0 on every one of 3 hosts" in judge_run(SETTINGS, PlayResult(0, QUIET), BOTH, [], tmp_path).summary


def test_a_play_that_ends_well_while_a_node_does_not_serve_is_not_a_pass(tmp_path: Path) -> None:
    outcome = judge_run(SETTINGS, PlayResult(0, HOSTS), ["node1"], [], tmp_path)
    assert (outcome.status, outcome.findings[0].code) == ("fail", "rehearse_not_serving")
    assert "node2" in outcome.findings[0].what


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"none"}))
def test_a_fault_that_no_gate_caught_is_a_failure(fault: str, tmp_path: Path) -> None:
    outcome = judge_run(replace(SETTINGS, fault=fault), PlayResult(0, HOSTS), BOTH, [], tmp_path)
    assert (outcome.exit_code, outcome.findings[-1].code) == (Exit.CHECK_FAILED, "rehearse_fault_not_caught")


def test_a_caught_fault_names_what_caught_it_and_the_verbs_own_cause(tmp_path: Path) -> None:
    play = PlayResult(2, HOSTS, failures=[failure(stdout=f"narration\n{GATE}\n"), failure(host="node2")])
    outcome = judge_run(replace(SETTINGS, fault="gate_up_mispaired"), play, [], [], tmp_path)
    assert outcome.exit_code == Exit.CHECK_FAILED
    assert "node1, Run the gate" in outcome.summary
    first = outcome.findings[0]
    assert (first.code, first.host, first.what) == ("below_floor", "node1", "0.02 < 0.40")


def test_a_failed_task_without_a_verb_gives_its_own_message(tmp_path: Path) -> None:
    outcome = judge_run(SETTINGS, PlayResult(2, HOSTS, failures=[failure(msg="port 8000 is taken")]), [], [], tmp_path)
    assert outcome.findings[0].what == "port 8000 is taken"


def test_an_unreachable_host_is_exit_3(tmp_path: Path) -> None:
    play = PlayResult(4, HOSTS, failures=[{**failure(), "event": "unreachable"}])
    assert judge_run(SETTINGS, play, [], [], tmp_path).exit_code == Exit.UNREACHABLE


def test_a_faulty_node_behind_the_gateway_is_said_beside_the_first_cause(tmp_path: Path) -> None:
    settings = replace(SETTINGS, fault="http_5xx")
    outcome = judge_run(settings, PlayResult(2, HOSTS, failures=[failure()]), BOTH, ["node1"], tmp_path)
    assert [f.code for f in outcome.findings] == ["rehearse_failed", "rehearse_half_rolled"]
    restored = judge_run(settings, PlayResult(2, HOSTS, failures=[failure()]), BOTH, [], tmp_path)
    assert "rehearse_half_rolled" not in [f.code for f in restored.findings]


def test_reports_of_the_nodes_become_verdicts(tmp_path: Path) -> None:
    report = tmp_path / "reports" / "node1" / "gate.json"
    report.parent.mkdir(parents=True)
    report.write_text(GATE)
    (report.parent / "report.html").write_text("<html></html>")
    data = judge_run(SETTINGS, PlayResult(0, HOSTS), BOTH, [], tmp_path).data
    assert look_at(SETTINGS, tmp_path)["report node1"].endswith("node1/report.html")
    assert data["verdicts"] == [{"host": "node1", "check": "gate", "status": "fail", "said": "FAIL"}]
    for when in ("before", "after"):
        (report.parent / f"status-{when}.json").write_text(GATE.replace('"gate"', '"status"'))
    again = judge_run(SETTINGS, PlayResult(0, HOSTS), BOTH, [], tmp_path).data["verdicts"]
    assert [v["check"] for v in again] == ["gate", "status-after", "status-before"]


def test_events_become_plays_with_seconds_and_a_torn_last_line_is_left_out() -> None:
    lines = [
        {"t": 10.0, "event": "play", "name": "Preflight"},
        {"t": 11.0, "event": "failed", "host": "node1", "task": "probe", "ignored": True},
        {"t": 14.5, "event": "play", "name": "Canary"},
        {"t": 15.0, "event": "changed", "host": "node1", "task": "write"},
        {"t": 20.0, "event": "stats", "hosts": {"node1": {"changed": 1}}},
    ]
    result = read_events("\n".join(map(json.dumps, lines)) + '\n{"t": 21.0, "ev')
    assert result.plays == [("Preflight", 4.5), ("Canary", 5.5)]
    assert (result.failures, result.changed, result.changed_total) == ([], [("node1", "write")], 1)


def test_no_event_at_all_is_an_empty_result() -> None:
    assert read_events("").plays == []


def test_only_servers_that_get_requests_count_as_serving() -> None:
    text = (
        "# pxname,svname,status,\nin,FRONTEND,OPEN,\nr,node1,UP,\nr,node2,DOWN,\nr,node3,UP 1/2,\nr,node4,MAINT,\n"
        "r,node5,DRAIN,\nr,BACKEND,UP,\n"
    )
    assert up_servers(text) == ["node1", "node3"]
    assert up_servers("") == []
