"""What scripts/setup.sh takes for an engine decides whether it installs one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"
DENIED = "permission denied while trying to connect to the Docker daemon socket"
NOBODY = "Cannot connect to the Docker daemon. Is the docker daemon running?"


@pytest.mark.parametrize(
    ("answer", "daemon", "host", "installs"),
    [
        pytest.param(NOBODY, False, "", True, id="a client alone"),
        pytest.param(NOBODY, True, "", False, id="an engine that is stopped"),
        pytest.param(DENIED, False, "", False, id="a socket that may not be used"),
        pytest.param(NOBODY, False, "tcp://engine:2375", False, id="an engine elsewhere that is down"),
        pytest.param("", False, "", False, id="an engine that answers on a mounted socket"),
    ],
)
def test_only_a_client_without_an_engine_makes_it_install_one(
    answer: str, daemon: bool, host: str, installs: bool
) -> None:
    script = f"""
        source {SETUP}
        docker() {{ if [[ -n "$ANSWER" ]]; then echo "$ANSWER" >&2; return 1; fi; }}
        command() {{ if [[ $2 == dockerd ]]; then {"true" if daemon else "false"}; else builtin command "$@"; fi; }}
        only_a_client
    """
    environ = {"PATH": "/usr/bin:/bin", "ANSWER": answer, "DOCKER_HOST": host}
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert (done.returncode == 0) is installs
