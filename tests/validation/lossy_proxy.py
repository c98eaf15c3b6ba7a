"""A proxy that stands between client and engine and spoils every Nth completion: drops it, or empties its answer."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

import httpx


class LossyProxy(ThreadingHTTPServer):
    """Forwards to `engine`; of the completions every `every`th is spoiled, counted from the first."""

    daemon_threads = True

    def __init__(self, engine: str, spoil: Literal["drop", "empty"], every: int) -> None:
        self.spoil, self.every, self.asked, self.spoiled = spoil, every, 0, 0
        self.lock = threading.Lock()
        self.engine = httpx.Client(base_url=engine, timeout=600)
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spoils_next(self) -> bool:
        with self.lock:
            self.asked += 1
            mine = self.asked % self.every == 0
            self.spoiled += mine
            return mine


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LossyProxy

    def log_message(self, *args: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # a client that went away
            super().handle()

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        got = self.server.engine.get(self.path)
        self._answer(got.status_code, got.content, got.headers["content-type"])

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        spoiled = self.server.spoils_next()
        if spoiled and self.server.spoil == "drop":
            self.close_connection = True  # without a word, as a proxy that runs out of connections does
            return
        got = self.server.engine.post(self.path, content=asked, headers={"Content-Type": "application/json"})
        body = got.content
        if spoiled:
            whole = json.loads(body)
            whole["choices"][0]["text"] = ""
            body = json.dumps(whole).encode()
        self._answer(got.status_code, body, got.headers["content-type"])
