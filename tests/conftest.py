"""What the live tests of several areas share: a usable engine, a rehearsal that is up, and who goes last."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from megamoe.resources import checkout_root

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def engine() -> str:
    """Path of the container engine's program; skips where it may not be used."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, timeout=60).returncode:
        pytest.skip("no container engine that may be used: scripts/setup.sh installs and starts one")
    return docker


@pytest.fixture(scope="session")
def rehearsal(engine: str) -> Path:
    """cluster.json of a rehearsal that is up: the one named in MEGAMOE_REHEARSAL_CLUSTER, else this checkout's."""
    if given := os.environ.get("MEGAMOE_REHEARSAL_CLUSTER"):
        return Path(given)
    if checkout_root() != ROOT:
        pytest.skip("megamoe is not this checkout's: the rehearsal would run other playbooks")
    state = ROOT / ".state/rehearsal/cluster.json"
    running = subprocess.run([engine, "ps", "--format", "{{.Names}}"], capture_output=True, text=True).stdout.split()
    wanted = {f"mmreh-{name}" for name in ("registry", "gateway", "node1", "node2")}
    if not state.is_file() or not wanted <= set(running):
        made = subprocess.run(
            [sys.executable, "-m", "megamoe", "rehearse", "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert made.returncode == 0, json.loads(made.stdout)
    return state
