"""Facts that are old, of the future or of another host are said to be so, and nothing is blocked by it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from megamoe.deploy.load import parse_deploy
from megamoe.preflight.command import _outcome
from megamoe.preflight.provenance import provenance
from megamoe_atom.problem import Exit

TEXT = (Path(__file__).parents[2] / "cases" / "base.yml").read_text()
NOW = 1_800_000_000.0
HOUR = 3600


def found(facts: dict[str, Any], host: str | None = "node-a") -> list[tuple[str, str, str]]:
    deploy = parse_deploy(TEXT).deploy.model_copy(update={"host": host})
    return [(f.code, f.severity, f.what) for f in provenance(facts, deploy, NOW)]


@pytest.mark.parametrize(("age", "expected"), [
    (0, []), (24 * HOUR, []), (-HOUR, []),
    (24 * HOUR + 1, [("FACTS_OLD", "warn", "the facts are 24 hours old")]),
    (9 * 24 * HOUR, [("FACTS_OLD", "warn", "the facts are 9 days old")]),
    (-HOUR - 1, [("FACTS_IN_THE_FUTURE", "warn", "the facts are of a time 1 hours from now")]),
    (-3 * 24 * HOUR, [("FACTS_IN_THE_FUTURE", "warn", "the facts are of a time 3 days from now")]),
])  # fmt: skip
def test_a_day_is_old_and_an_hour_ahead_is_a_wrong_clock(age: float, expected: list[Any]) -> None:
    assert found({"collected_at": NOW - age}) == expected


@pytest.mark.parametrize("at", [None, "yesterday", [], True, {}])
def test_a_time_that_is_none_says_nothing(at: Any) -> None:
    assert found({"collected_at": at}) == []


@pytest.mark.parametrize(("hostname", "host", "said"), [
    ("node-b", "node-a", True), ("node-b.example.net", "node-a", True),
    ("node-a", "node-a", False), ("NODE-A", "node-a", False), ("node-a.example.net", "node-a", False),
    ("node-a", "node-a.example.net", False), ("node-b", "10.0.0.7", False), ("node-b", "fd00::7", False),
    ("node-b", None, False), ("", "node-a", False), (None, "node-a", False), (["x"], "node-a", False),
])  # fmt: skip
def test_facts_of_a_host_of_another_name_are_said_and_no_more(hostname: Any, host: str | None, said: bool) -> None:
    expected = [("FACTS_OF_ANOTHER_NAME", "info", f"the facts are of host {hostname}, DEPLOY is for {host}")]
    assert found({"hostname": hostname}, host) == (expected if said else [])


def test_the_verb_says_it_and_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "deploy.yml").write_text(TEXT)
    (tmp_path / "facts.json").write_text(json.dumps(
        {"numa_balancing": 0, "hostname": "other", "collected_at": int(time.time()) - 3 * 24 * HOUR}))
    outcome = _outcome(str(tmp_path / "deploy.yml"), str(tmp_path / "facts.json"), collect=False)
    assert outcome.exit_code is Exit.PASS
    assert {f.code for f in outcome.findings} == {"FACTS_OLD", "FACTS_OF_ANOTHER_NAME"}
    assert {f.host for f in outcome.findings} == {"node-a"}
