"""The rehearsal's HTML page says what the envelope says, and nothing in it can break the page."""

from __future__ import annotations

from typing import Any

from megamoe.rehearse.page import to_html


def envelope(**data: Any) -> dict[str, Any]:
    phases = [
        {"name": "host image", "status": "pass", "began": 0.0, "seconds": 20.0, "note": ""},
        {"name": "reference image", "status": "pass", "began": 0.0, "seconds": 30.0, "note": ""},
        {"name": "roll out with site.yml", "status": "fail", "began": 30.0, "seconds": 70.0, "note": "changed 3"},
    ]
    return {
        "status": "fail",
        "summary": "the roll-out stopped",
        "findings": [{"code": "below_floor", "severity": "error", "what": "0.02 < 0.60", "why": "w", "fix": "f"}],
        "data": {"phases": phases, "nodes": 2, "fault": "none", **data},
    }


def test_the_first_cause_the_verdicts_and_the_time_of_each_play_are_on_the_page() -> None:
    page = to_html(
        envelope(
            verdicts=[{"host": "node1", "check": "gate", "status": "fail", "said": "1 of 64"}],
            plays=[{"name": "Prepare", "seconds": 5.0}, {"name": "Roll out to the canary", "seconds": 35.0}],
            hosts={"node1": {"changed": 3, "failures": 1}},
            serving=["node2"],
        )
    )
    bar = "margin-left:35.0%; width:35.0%"
    for words in ("First cause", "0.02 &lt; 0.60", "1 of 64", "Roll out to the canary", bar, "100 s"):
        assert words in page


def test_text_from_a_server_cannot_become_markup() -> None:
    body = envelope(verdicts=[{"host": "<script>x</script>", "check": "gate", "status": "fail", "said": "&"}])
    assert "<script>" not in to_html(body)


def test_a_run_that_stopped_before_its_first_phase_still_has_a_page() -> None:
    page = to_html({"status": "error", "summary": "no engine", "findings": [], "data": {"phases": []}})
    assert "no engine" in page and "(0 s)" in page
