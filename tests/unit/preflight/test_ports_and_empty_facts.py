"""Taken ports in every form that facts give them, and facts that say nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from megamoe.deploy.load import parse_deploy
from megamoe.preflight.command import _outcome
from megamoe.preflight.judge import ports
from megamoe_atom.problem import Exit, Problem

TEXT = (Path(__file__).parents[2] / "cases" / "base.yml").read_text()
DEPLOY = parse_deploy(TEXT).deploy


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"listening_ports": [22, 8000]}, "port 8000 is taken"),
        ({"listening_ports": ["22", "8000"]}, "port 8000 is taken"),
        ({"listening_ports": [{"port": 8000, "pid": 71}]}, "port 8000 by pid 71 is taken"),
        ({"port_8000": {"pid": 71, "container": "old"}}, "port 8000 by pid 71, container old is taken"),
        ({"listening_ports": [29500]}, "port 29500 is taken"),  # ATOM's data-parallel group
        ({"listening_ports": [8006]}, "port 8006 is taken"),
    ],
    ids=str,
)
def test_a_taken_port_blocks_in_whatever_form_it_is_listed(facts: dict[str, Any], shown: str) -> None:
    (finding,) = ports(facts, DEPLOY)
    assert (finding.code, finding.severity, finding.what) == ("PORT_IN_USE", "error", shown)


@pytest.mark.parametrize("listed", [[], [22], ["22", {"port": 80}], [float("nan"), None, -1, "x", 8000.5e9]], ids=str)
def test_other_ports_and_what_is_no_port_do_not(listed: list[Any]) -> None:
    assert ports({"listening_ports": listed, "port_x": {"pid": 1}}, DEPLOY) == []


@pytest.mark.parametrize("facts", [{}, {"colour": "blue"}], ids=str)
def test_facts_that_say_nothing_of_a_host_are_no_pass(tmp_path: Path, facts: dict[str, Any]) -> None:
    (tmp_path / "deploy.yml").write_text(TEXT)
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    with pytest.raises(Problem) as caught:
        _outcome(str(tmp_path / "deploy.yml"), str(tmp_path / "facts.json"), collect=False)
    assert caught.value.exit_code is Exit.NO_EVIDENCE
    (tmp_path / "facts.json").write_text('{"numa_balancing": 0}')
    assert _outcome(str(tmp_path / "deploy.yml"), str(tmp_path / "facts.json"), collect=False).exit_code is Exit.PASS
