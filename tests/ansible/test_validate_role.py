"""What the validate role hands to the CLI: every piece of evidence that only the node has, read before and after."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "simulation"))

from simulated import GOOD, FakeCluster

pytestmark = pytest.mark.slow
RELEASE = "a" * 64
# Notes what the role runs on the controller, then lets the simulation's own command answer.
RECORDER = """#!/bin/sh
printf '%s\\0' "$@" >> {log}
printf '\\n' >> {log}
exec {cli} "$@"
"""


def serve(cluster: FakeCluster, node: str, **env: str) -> None:
    """The node serves a recorded release."""
    image = f"registry.test/megamoe@sha256:{GOOD}"
    spec = {"name": "megamoe", "image": image, "env": env}
    record = {"image": image, "plan_hash": RELEASE, "port": 8000, "container": spec}
    state = {"state": "serving", "release": RELEASE[:12], "port": 8000}
    cluster.write(
        node,
        files={
            f"/var/lib/megamoe/releases/{RELEASE[:12]}.json": json.dumps(record),
            "/var/lib/megamoe/state.json": json.dumps(state),
        },
        containers={"megamoe": {"image": image, "env": env, "command": [], "running": True}},
        images=[image],
    )


def calls(folder: Path, node: str) -> dict[str, list[str]]:
    """verb -> arguments, as the role gave them to the CLI on the controller for this node."""
    lines = [line.rstrip("\0").split("\0") for line in (folder / "argv").read_text().splitlines()]
    return {argv[0]: argv[1:] for argv in lines if any(f"/reports/{node}/" in word for word in argv)}


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_gate_and_smoke_get_what_only_the_node_can_see(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, nodes=2)
    cluster.vars["serve_cli"] = str(tmp_path / "recorder")
    (tmp_path / "recorder").write_text(RECORDER.format(log=tmp_path / "argv", cli=tmp_path / "megamoe"))
    (tmp_path / "recorder").chmod(0o755)
    serve(cluster, "node1", ATOM_USE_FLYDSL_FUSED="1")
    serve(cluster, "node2")
    done = cluster.play("playbooks/validate.yml")
    assert done.returncode == 0, done.output[-3000:]
    ran = calls(tmp_path, "node1")
    for when in ("before", "after"):
        kept: dict[str, Any] = json.loads(Path(value(ran["gate"], f"--status-{when}")).read_text())
        assert [r["rank"] for r in kept["data"]["ranks"]] == [0, 1]
    assert value(ran["gate"], "--server-started-at-end") == value(ran["gsm8k"], "--server-started")
    assert value(ran["gsm8k"], "--image-created") == "2026-12-01T00:00:00Z"
    assert value(ran["gsm8k"], "--image-digest") == f"sha256:{GOOD}"
    assert "--deploy" not in ran["gsm8k"]  # this container comes out of a record, not out of today's plan
    assert json.loads(Path(value(ran["report"], "--facts")).read_text()) == {"archs": [], "gpus": []}
    ((_, argv, stdin),) = [entry for entry in cluster.read("node1")["log"] if entry[0] == "smoke"]
    assert value(argv, "--image").endswith(GOOD) and value(argv, "--inspect") == "-"
    assert json.loads(stdin)[0]["Config"]["Image"].endswith(GOOD)
    # Where the fused path is not asked for there is no evidence, and none is demanded.
    assert "--status-before" not in calls(tmp_path, "node2")["gate"]
