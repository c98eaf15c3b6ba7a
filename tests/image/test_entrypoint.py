"""The entrypoint's verbs: who is called with what, in both images, and what the health check says."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).resolve().parents[2] / "docker/entrypoint.sh"


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """Programs that say how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python", "megamoe", "other"):
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*"\nexit 42\n')
        program.chmod(0o755)
    return folder


def run(bin_dir: Path, *argv: str, **env: str) -> tuple[int, str]:
    """Exit code and output of the entrypoint in an otherwise empty environment."""
    done = subprocess.run(
        ["bash", str(ENTRYPOINT), *argv],
        env={"PATH": f"{bin_dir}:{os.environ['PATH']}", "MEGAMOE_PORT": "8000"} | env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout.strip()


ROCM = {"MEGAMOE_KERNELS": "/opt/megamoe/kernels", "MEGAMOE_ENGINE_MODULE": "atom.entrypoints.openai_server"}


@pytest.mark.parametrize("argv", [("serve", "--model", "/m"), ("--model", "/m")], ids=["serve", "flags alone"])
def test_the_rocm_image_judges_before_it_serves(bin_dir: Path, argv: tuple[str, ...]) -> None:
    assert run(bin_dir, *argv, **ROCM) == (42, "python -m megamoe.image.launch --model /m")


def test_nothing_at_all_means_serve(bin_dir: Path) -> None:
    assert run(bin_dir, **ROCM) == (42, "python -m megamoe.image.launch")


def test_the_reference_image_starts_its_engine_with_the_health_checks_port(bin_dir: Path) -> None:
    env = {"MEGAMOE_ENGINE_MODULE": "reference_engine"}
    assert run(bin_dir, "serve", "--model", "/m", **env) == (
        42,
        "python -m reference_engine --model /m --server-port 8000",
    )
    assert run(bin_dir, "serve", "--server-port", "9", **env) == (42, "python -m reference_engine --server-port 9")


@pytest.mark.parametrize("verb", ["plan", "status", "version", "smoke"])
def test_a_verb_is_the_command_of_that_name_and_its_exit_code_is_kept(bin_dir: Path, verb: str) -> None:
    assert run(bin_dir, verb, "a b", "--json", **ROCM) == (42, f"megamoe {verb} a b --json")


def test_anything_else_is_executed(bin_dir: Path) -> None:
    assert run(bin_dir, "other", "x", **ROCM) == (42, "other x")
    assert run(bin_dir, "no-such-program", **ROCM)[0] == 127


@pytest.mark.parametrize(("answer", "code"), [("200 OK", 0), ("503 Service Unavailable", 1)])
def test_health_is_the_servers_own_answer(bin_dir: Path, answer: str, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                asked = b""
                while b"\r\n\r\n" not in asked:  # bash sends line by line
                    asked += connection.recv(1024)
                connection.sendall(f"HTTP/1.0 {answer}\r\n\r\n".encode())

        thread = threading.Thread(target=serve)
        thread.start()
        assert run(bin_dir, "health", **ROCM, **{"MEGAMOE_PORT": str(port)})[0] == code
        thread.join(timeout=10)


def test_health_fails_where_nobody_listens(bin_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert run(bin_dir, "health", **ROCM, **{"MEGAMOE_PORT": str(port)})[0] == 1
