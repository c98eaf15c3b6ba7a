"""What speaks against a container that runs: each thing that docker and podman print beside the word running."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from megamoe.envelope import Outcome
from megamoe.verify_deploy.command import _outcome
from megamoe.verify_deploy.compare import compare
from megamoe_atom.problem import Exit
from test_verify_deploy_fields import DEPLOYS, planned, printed

ENGINES = pytest.mark.parametrize("engine", ["docker", "podman"])


def running(engine: str, **state: Any) -> dict[str, Any]:
    out = printed(engine)
    out["State"] = {**out["State"], "Status": "running", "Running": True, **state}
    return out


def state_of(engine: str, inspect: dict[str, Any]) -> tuple[str, str]:
    (row,) = [row for row in compare(planned(engine), inspect) if row.field == "state"]
    return row.state, row.running


@ENGINES
@pytest.mark.parametrize(("state", "said"), [
    ({"Paused": True}, "running, but paused"),
    ({"Restarting": True}, "running, but being restarted"),
    ({"OOMKilled": True}, "running, but the kernel killed a process of it for memory"),
    ({"Dead": True}, "running, but dead: its removal failed"),
    ({"Health": {"Status": "unhealthy", "FailingStreak": 3}}, "running, but its health check fails"),
    ({"Healthcheck": {"Status": "unhealthy", "FailingStreak": 3}}, "running, but its health check fails"),
    ({"OOMKilled": True, "Health": {"Status": "unhealthy"}},
     "running, but the kernel killed a process of it for memory, its health check fails"),
    ({"Status": "paused", "Paused": True}, "paused"),
    ({"Status": "restarting", "Restarting": True, "ExitCode": 1, "OOMKilled": False}, "restarting (exit code 1)"),
    ({"Status": "exited", "Running": False, "ExitCode": 137, "OOMKilled": True},
     "exited (exit code 137, out of memory)"),
    ({"Status": None, "Running": False}, "not running"),
], ids=str)  # fmt: skip
def test_what_speaks_against_it_is_drift_of_its_state(engine: str, state: dict[str, Any], said: str) -> None:
    inspect = running(engine, **state)
    if "ExitCode" not in state:
        inspect["State"].pop("ExitCode", None)
    assert state_of(engine, inspect) == ("drift", said)


@ENGINES
@pytest.mark.parametrize("state", [
    {}, {"Health": {"Status": "healthy"}}, {"Health": {"Status": "starting"}}, {"Health": None},
    {"Healthcheck": {"Status": "", "FailingStreak": 0, "Log": None}},
    dict.fromkeys(("Paused", "Restarting", "OOMKilled", "Dead"), False),
], ids=str)  # fmt: skip
def test_a_container_that_runs_and_is_not_unhealthy_is_the_plan(engine: str, state: dict[str, Any]) -> None:
    assert state_of(engine, running(engine, **state)) == ("same", "running")


@ENGINES
@pytest.mark.parametrize("flag", ["Paused", "Restarting", "OOMKilled", "Dead"])
def test_a_flag_of_another_type_leaves_the_state_unknown(engine: str, flag: str) -> None:
    assert state_of(engine, running(engine, **{flag: "true"}))[0] == "unknown"


def verdict(folder: Path, engine: str, inspect: dict[str, Any]) -> Outcome:
    (folder / "d.yml").write_text(yaml.safe_dump(DEPLOYS[engine]))
    (folder / "i.json").write_text(json.dumps([inspect]))
    return _outcome(str(folder / "d.yml"), str(folder / "i.json"), "")


@ENGINES
@pytest.mark.parametrize(("count", "warned"), [(3, True), (0, False), (None, False), (True, False), ("3", False)])
def test_a_container_that_was_started_again_is_the_plan_with_a_warning(engine: str, count: Any, warned: bool,
                                                                       tmp_path: Path) -> None:
    outcome = verdict(tmp_path, engine, {**running(engine), "RestartCount": count})
    found = [f for f in outcome.findings if f.code == "restarted"]
    assert outcome.exit_code is Exit.PASS
    assert [(f.severity, f"{engine} started" in f.what) for f in found] == ([("warn", True)] if warned else [])
