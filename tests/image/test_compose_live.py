"""`docker compose` itself reads the compose file; the schema is held by test_dockerfile, without it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def compose(engine: str) -> list[str]:
    """The command: the engine's plugin, or the program of its own."""
    if not subprocess.run([engine, "compose", "version"], capture_output=True, timeout=60).returncode:
        return [engine, "compose"]
    if program := shutil.which("docker-compose"):
        return [program]
    pytest.skip("no docker compose: install docker-compose (Debian) or docker-compose-plugin")


def test_the_compose_file_of_a_node_is_accepted_and_asks_for_the_group_numbers(compose: list[str]) -> None:
    argv = [*compose, "-f", str(ROOT / "docker/compose.yml"), "config"]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp"}
    asked = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert asked.returncode != 0 and "stat -c %g /dev/kfd" in asked.stderr
    given = env | {"MEGAMOE_GID_KFD": "44", "MEGAMOE_GID_RENDERD128": "109"}
    shown = subprocess.run(argv, env=given, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert {str(g) for g in yaml.safe_load(shown.stdout)["services"]["moe"]["group_add"]} == {"44", "109"}
