"""`docker compose` with the file that the plan renders, against a real engine: a rehearsal's CPU reference image."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from megamoe.deploy.load import parse_deploy
from megamoe.plan.judge import outcome_of
from megamoe_atom.problem import Exit

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]
NAME = "mmimg-compose"
IMAGE = "mmreh-reference:current"


@pytest.fixture
def compose(engine: str) -> list[str]:
    """The command: the engine's plugin, or the program of its own."""
    if not subprocess.run([engine, "compose", "version"], capture_output=True, timeout=60).returncode:
        return [engine, "compose"]
    if program := shutil.which("docker-compose"):
        return [program]
    pytest.skip("no docker compose: install docker-compose (Debian) or docker-compose-plugin")


@pytest.fixture
def served(engine: str, rehearsal: Path, compose: list[str], tmp_path: Path) -> Iterator[int]:
    """The service as the compose file brings it up, on a free port; taken down again whatever happens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    status = tmp_path / "status"
    status.mkdir()
    os.chown(status, 10001, 10001)
    identity = subprocess.run(
        [engine, "image", "inspect", "--format", "{{.Id}}", IMAGE], capture_output=True, text=True, check=True
    ).stdout.strip()
    deploy = {
        "engine": "reference",
        "image": identity,
        "model": {"path": str(ROOT / ".state/model"), "profile": "rehearsal", "weights": "mxfp4"},
        "gpu": {"arch": "cpu", "count": 0, "vram_gib": 0},
        "args": {
            "tensor_parallel": 2, "enable_dp_attention": True, "enable_expert_parallel": True, "moe_backend": "mega",
            "max_num_batched_tokens": 512, "max_num_seqs": 8, "max_model_len": 2048, "port": port,
        },
        "container": {
            "name": NAME, "ipc": "private", "restart_policy": "no", "network_mode": "host", "user": "10001:10001",
            "read_only": True, "tmpfs": ["/tmp:size=64m"], "status_dir": str(status),
        },
    }  # fmt: skip
    outcome = outcome_of(parse_deploy(yaml.safe_dump(deploy)), {})
    assert outcome.exit_code is Exit.PASS, outcome.findings
    file = tmp_path / "compose.yml"
    file.write_text(outcome.data["compose"])
    base = [*compose, "-p", NAME, "-f", str(file)]
    try:
        up = subprocess.run([*base, "up", "-d"], capture_output=True, text=True, timeout=300)
        assert up.returncode == 0, up.stderr
        yield port
    finally:
        down = subprocess.run([*base, "down", "--timeout", "60"], capture_output=True, text=True, timeout=300)
    assert down.returncode == 0, down.stderr
    left = subprocess.run([engine, "ps", "-a", "--format", "{{.Names}}"], capture_output=True, text=True).stdout
    assert NAME not in left.split()


def test_the_plans_compose_file_serves_becomes_healthy_and_goes_down(engine: str, served: int) -> None:
    def inspect(template: str) -> str:
        argv = [engine, "inspect", "--format", template, NAME]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    deadline = time.monotonic() + 300
    while (state := inspect("{{.State.Status}} {{.State.Health.Status}}")) != "running healthy":
        assert state.startswith("running") and time.monotonic() < deadline, (state, subprocess.run(
            [engine, "logs", "--tail", "20", NAME], capture_output=True, text=True).stderr)  # fmt: skip
        time.sleep(2)
    assert inspect("{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.NetworkMode}} {{.Config.User}}") == (
        "true host 10001:10001"
    )
    body = {"model": "", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    with urllib.request.urlopen(f"http://127.0.0.1:{served}/v1/models", timeout=60) as answer:
        body["model"] = json.load(answer)["data"][0]["id"]
    request = urllib.request.Request(
        f"http://127.0.0.1:{served}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        assert "Paris" in json.load(answer)["choices"][0]["text"]


def test_the_compose_file_of_a_node_is_accepted_and_asks_for_the_group_numbers(compose: list[str]) -> None:
    argv = [*compose, "-f", str(ROOT / "docker/compose.yml"), "config"]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp"}
    asked = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert asked.returncode != 0 and "stat -c %g /dev/kfd" in asked.stderr
    given = env | {"MEGAMOE_GID_KFD": "44", "MEGAMOE_GID_RENDERD128": "109"}
    shown = subprocess.run(argv, env=given, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert {str(g) for g in yaml.safe_load(shown.stdout)["services"]["moe"]["group_add"]} == {"44", "109"}
