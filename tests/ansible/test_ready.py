"""Waiting for a server: a real completion ends it well, a container that ended ends it at once with the cause."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

MODULE = Path(__file__).resolve().parents[2] / "ansible/library/megamoe_ready.py"
REFUSED = "loading\nerror: layer 3 is out of bounds [selftest]\n  why: gate and up are mis-paired\n  fix: see it\nbye\n"


class Server(BaseHTTPRequestHandler):
    text = "Paris"

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.answer({"choices": [{"text": self.text}]})

    def answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def wait(tmp_path: Path, url: str, state: dict[str, Any] | None, log: str = "", timeout_s: int = 1) -> dict[str, Any]:
    """Runs the module with a docker that prints this state and log."""
    docker = tmp_path / "docker"
    (tmp_path / "state.json").write_text(json.dumps([state]) if state else "[]")
    (tmp_path / "log").write_text(log)
    docker.write_text(f"#!/bin/sh\ncase $1 in inspect) cat {tmp_path}/state.json ;; *) cat {tmp_path}/log ;; esac\n")
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    arguments = {"url": url, "container": "megamoe", "prompt": "p", "expect": "Paris", "timeout_s": timeout_s}
    done = subprocess.run(
        [sys.executable, MODULE], input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}), capture_output=True, text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


def running(**extra: Any) -> dict[str, Any]:
    return {"State": {"Status": "running", "StartedAt": "t0"}, **extra}


def test_a_server_that_completes_as_expected_is_ready_whatever_its_past(tmp_path: Path, url: str) -> None:
    result = wait(tmp_path, url, running(RestartCount=3))
    assert (result.get("failed"), result["text"]) == (None, "Paris")


def test_a_container_that_ended_is_not_waited_for_and_its_own_error_is_the_message(tmp_path: Path) -> None:
    begun = time.monotonic()
    exited = {"State": {"Status": "exited", "ExitCode": 1, "StartedAt": "t0"}}
    result = wait(tmp_path, "http://127.0.0.1:9", exited, REFUSED, timeout_s=600)
    assert time.monotonic() - begun < 30
    assert "exit code 1" in result["msg"]
    assert "[selftest]; why: gate and up are mis-paired; fix: see it" in result["msg"]


def test_a_container_that_is_started_again_and_again_is_not_waited_for(tmp_path: Path) -> None:
    log = "Traceback (most recent call last):\n  File x\nRuntimeError: out of heap\nstarting\n"
    result = wait(tmp_path, "http://127.0.0.1:9", running(RestartCount=2), log, timeout_s=600)
    assert "started again 2 times" in result["msg"] and result["msg"].endswith("RuntimeError: out of heap")


def test_a_server_that_completes_wrongly_three_times_is_not_waited_for(tmp_path: Path, url: str) -> None:
    Server.text = "Berlin"
    try:
        result = wait(tmp_path, url, running(), timeout_s=600)
    finally:
        Server.text = "Paris"
    assert "completes, but wrongly: 'p' gave 'Berlin', expected /Paris/" in result["msg"]


def test_a_host_whose_engine_cannot_be_asked_is_waited_for_to_the_end(tmp_path: Path) -> None:
    assert "the last try: URLError" in wait(tmp_path, "http://127.0.0.1:9", None)["msg"]


def test_the_last_line_is_the_cause_when_nothing_looks_like_one() -> None:
    spec = importlib.util.spec_from_file_location("megamoe_ready", MODULE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.first_cause("a\nb\n\n") == "b"
    assert module.first_cause("") == "it logged nothing"
