"""The gateway's configuration in a real HAProxy: what it accepts, what it loses, what it does on a reload."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "simulation"))

from rendered import as_this_user, gateway_config

HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/bin") or ""
pytestmark = pytest.mark.skipif(not HAPROXY, reason="haproxy is not installed")
ANSWER = b'{"choices":[{"text": "Paris"}]}'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Node:
    """An HTTP server on raw sockets; one that `closes` closes a kept connection when a second request comes on it."""

    def __init__(self, *, closes: bool = False) -> None:
        self.closes, self.bodies, self.gone = closes, list[bytes](), threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(link,), daemon=True).start()

    def _request(self, link: socket.socket) -> bytes | None:
        """Body of the next request, None at the end of the connection."""
        text = b""
        while b"\r\n\r\n" not in text:
            part = link.recv(65536)
            if not part:
                return None
            text += part
        head, _, body = text.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(x.split(b":")[1]) for x in lines if x.startswith(b"content-length")), 0)
        while len(body) < length:
            body += link.recv(65536)
        return body

    def _one(self, link: socket.socket) -> None:
        with link:
            try:
                for served in range(1000):
                    body = self._request(link)
                    if body is None or (served and self.closes):
                        return
                    self.bodies.append(body)
                    if b"slow" in body:
                        self._until_closed(link)
                        return
                    link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)
            except OSError:
                return

    def _until_closed(self, link: socket.socket) -> None:
        link.settimeout(20)
        with suppress(ConnectionResetError):
            if link.recv(1):
                return
        self.gone.set()

    def close(self) -> None:
        self._socket.close()


@contextmanager
def gateway(folder: Path, node: Node, *options: str, **values: object) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """HAProxy with our configuration in front of one node: its port and its process."""
    port = free_port()
    text = gateway_config(
        {"a": "serving"}, address="127.0.0.1", gateway_socket=str(folder / "admin.sock"),
        gateway_bind=f"127.0.0.1:{port}", gateway_metrics_bind=f"127.0.0.1:{free_port()}", **values,
    )  # fmt: skip
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{node.port}").replace(":8404", f":{free_port()}")
    (folder / "haproxy.cfg").write_text(as_this_user(text))
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([HAPROXY, *options, "-f", str(folder / "haproxy.cfg")], stdout=quiet, stderr=quiet)
    try:
        wait_for(lambda: (folder / "admin.sock").exists() and bool(node.bodies))  # up, and the first check has come
        time.sleep(0.2)
        yield port, process
    finally:
        process.terminate()
        process.wait(10)
        node.close()


def wait_for(met: Callable[[], bool], timeout_s: float = 20) -> None:
    end = time.monotonic() + timeout_s
    while not met():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def status_of(client: http.client.HTTPConnection, **headers: str) -> int:
    client.request("POST", "/v1/completions", b"{}", {"Content-Type": "application/json", **headers})
    answer = client.getresponse()
    answer.read()
    return answer.status


@pytest.mark.parametrize(
    ("address", "values"),
    [
        ("192.0.2.1", {}),
        ("2001:db8::11", {}),
        ("192.0.2.1", {"gateway_probe_prompt": "It's 2? # \\d \"$HOME\"", "gateway_probe_expect": "it's \\d # \"x\""}),
    ],
    ids=["defaults", "ipv6", "quotes"],
)
def test_haproxy_accepts_every_address_prompt_and_expression(
    tmp_path: Path, address: str, values: dict[str, str]
) -> None:
    text = gateway_config({"good": "serving"}, address=address, **values)
    (tmp_path / "c").write_text(as_this_user(text))
    done = subprocess.run([HAPROXY, "-c", "-f", str(tmp_path / "c")], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[2001:db8::11]:8000 check\n" in text or ":" not in address


def test_the_probe_reaches_the_node_as_it_was_written(tmp_path: Path) -> None:
    node = Node()
    with gateway(tmp_path, node, gateway_probe_prompt="What's \"2+2\"? # \\d $HOME"):
        assert b'"What\'s \\"2+2\\"? # \\\\d $HOME"' in node.bodies[0]


def test_a_request_does_not_cross_with_the_nodes_closing_an_idle_connection(tmp_path: Path) -> None:
    with gateway(tmp_path, Node(closes=True)) as (port, _):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        assert [status_of(client) for _ in range(3)] == [200, 200, 200]


def test_a_client_that_gave_up_is_not_computed_for(tmp_path: Path) -> None:
    node = Node()
    with gateway(tmp_path, node) as (port, _):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        client.request("POST", "/v1/completions", b'{"prompt": "slow"}')
        wait_for(lambda: b"slow" in node.bodies[-1])
        client.close()
        assert node.gone.wait(10)


def test_only_the_key_is_let_in_whatever_characters_it_has(tmp_path: Path) -> None:
    key = "a,b#c 'd'"
    (tmp_path / "api_keys").write_text(f"Bearer {key}\n")
    values = {"gateway_api_key": key, "gateway_config": str(tmp_path / "haproxy.cfg")}
    with gateway(tmp_path, Node(), **values) as (port, _):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        assert status_of(client, Authorization=f"Bearer {key}") == 200
        assert status_of(client, Authorization="Bearer a") == 401
        assert status_of(client) == 401


def test_a_reload_of_the_unprivileged_worker_loses_no_request(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with gateway(tmp_path, Node(), "-W", "-S", str(tmp_path / "master.sock")) as (port, master):
        worker = int(subprocess.run(["pgrep", "-P", str(master.pid)], capture_output=True, text=True).stdout)
        owner = Path(f"/proc/{worker}").stat().st_uid
        assert owner != 0 or os.geteuid() != 0
        answers, end = list[int](), threading.Event()

        def ask() -> None:
            while not end.is_set():
                answers.append(status_of(http.client.HTTPConnection("127.0.0.1", port, timeout=10)))

        client = threading.Thread(target=ask)
        client.start()
        master.send_signal(signal.SIGUSR2)
        wait_for(lambda: not Path(f"/proc/{worker}").exists())
        time.sleep(0.3)
        end.set()
        client.join(20)
        assert set(answers) == {200} and len(answers) > 5
