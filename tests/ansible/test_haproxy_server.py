"""Draining over HAProxy's sockets: a worker hangs up after an answer, the master waits for more until we hang up."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

MODULE = Path(__file__).resolve().parents[2] / "ansible/library/megamoe_haproxy_server.py"
STAT = "# pxname,svname,scur,status\nnodes,node1,{sessions},{status}\n\n"
SERVERS = (
    "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_port\n"
    "3 nodes 1 node1 10.0.0.1 2 {admin} 8000\n\n"
)
PROC = "#<PID> <type>\n1 master\n# workers\n9 worker\n# old workers\n7 worker\n# programs\n\n"


class Api:
    """A UNIX socket that answers line by line; `hangs_up` after one answer as a worker does, or not, as the master."""

    def __init__(self, path: Path, answers: dict[str, str], *, hangs_up: bool) -> None:
        self.path, self.answers, self.hangs_up, self.heard = path, answers, hangs_up, list[str]()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            with link, link.makefile("rw") as lines:
                for line in lines:
                    self.heard.append(line.strip())
                    lines.write(self.answers.get(line.strip(), "\n"))
                    lines.flush()
                    if self.hangs_up:
                        break

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def haproxy(tmp_path: Path) -> Iterator[tuple[Api, Api]]:
    said = {"show stat": STAT.format(sessions=0, status="DRAIN"), "show servers state nodes": SERVERS.format(admin=0)}
    worker = Api(tmp_path / "admin.sock", said, hangs_up=True)
    master = Api(tmp_path / "master.sock", {"show proc": PROC, "@!7 show stat": said["show stat"]}, hangs_up=False)
    yield worker, master
    worker.close()
    master.close()


def drain(worker: Api, master: Api, timeout_s: int = 1) -> dict[str, object]:
    arguments = {
        "socket": str(worker.path), "master_socket": str(master.path), "backend": "nodes", "server": "node1",
        "state": "drain", "timeout_s": timeout_s,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(MODULE)],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    result: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def test_a_drain_ends_although_the_master_keeps_its_connection_open(haproxy: tuple[Api, Api]) -> None:
    worker, master = haproxy
    result = drain(worker, master)
    assert result["changed"] is True and result["sessions"] == 0, result
    assert "set server nodes/node1 state drain" in worker.heard
    assert master.heard == ["show proc", "@!7 show stat"]


def test_a_drain_counts_what_an_earlier_worker_still_carries(haproxy: tuple[Api, Api]) -> None:
    worker, master = haproxy
    master.answers["@!7 show stat"] = STAT.format(sessions=2, status="UP")
    result = drain(worker, master)
    assert result["failed"] is True and "2 sessions" in str(result["msg"]), result
    assert "gateway_drain_timeout_s" in str(result["msg"])
