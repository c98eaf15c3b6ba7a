"""A small OpenAI-compatible server in this process: answers sums for real, with faults switched on by name."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from megamoe.smoke.checks import CAPITALS


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answers: dict[str, str] | None = None, fault: str = "", port: int = 0) -> None:
        self.answers, self.fault, self.asked = answers or {}, fault, 0
        self.started, self.seen_keys, self.stopped = time.time(), set[str](), False
        self.running, self.lock, self.limit = 0, threading.Lock(), 9472
        super().__init__(("127.0.0.1", port), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        """Ends as a killed process does: open connections break, too (their threads would go on answering)."""
        self.stopped = True
        self.shutdown()
        self.server_close()

    def answer(self, prompt: str) -> str:
        """A worked answer to the last question of the prompt, or the sum of its two numbers."""
        question = prompt.rsplit("Question: ", 1)[-1].removesuffix("\nAnswer:").strip()
        if question in self.answers:
            return " " + self.answers[question]
        numbers = [int(x) for x in re.findall(r"\d+", question)]
        for country, capital in CAPITALS.items():
            if f"capital of {country}" in question:
                return f" {CAPITALS['Italy'] if self.fault == 'mixed_up' else capital}."
        if "story" in question:
            return " once upon a time" * 500
        return f" {sum(numbers[-2:])}." if numbers else " I do not know."


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # head and body are two writes; waiting for the first's receipt costs 40 ms each time
    )
    server: FakeServer

    def handle(self) -> None:
        # a client that went away is what some tests do
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            super().handle()

    def log_message(self, *args: Any) -> None:
        pass

    def _send(self, status: int, body: Any, kind: str = "application/json") -> None:
        if self.server.stopped:
            self.close_connection = True
            return
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        if self.server.fault == "html":
            self._send(200, "<html>login</html>", "text/html")
        elif self.server.fault == "401":
            self._send(401, {"error": {"message": "no key"}})
        elif self.path == "/health":
            self._send(200, {"status": "ok"})
        elif self.path == "/v1/models":
            name = "someone-else" if self.server.fault == "foreign" else "demo"
            self._send(200, {"object": "list", "data": [{"id": name, "object": "model"}]})
        elif self.path == "/metrics":
            gauge = "" if self.server.fault == "no_gauge" else f"demo:num_requests_running {self.server.running}\n"
            self._send(200, f"process_start_time_seconds {self.server.started}\n{gauge}", "text/plain")
        else:
            self._send(404, {"error": {"message": "no such route"}})

    def _stream(self, words: list[str], usage: dict[str, int], chat: bool) -> None:
        fault = self.server.fault
        pieces = ["".join(words)] if fault == "one_chunk" else [] if fault == "no_chunks" else words
        if fault == "buffering_proxy":
            time.sleep(min(0.02 * len(pieces), 0.5))
        for piece in pieces:
            choice = {"index": 0, "delta": {"content": piece}} if chat else {"index": 0, "text": piece}
            self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            self.wfile.flush()
            if fault != "buffering_proxy":
                time.sleep(0.02)
        last = {"choices": []} if fault == "no_stream_usage" else {"choices": [], "usage": usage}
        if fault == "wrong_stream_usage":
            last["usage"]["total_tokens"] += 1
        self.wfile.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")

    def do_POST(self) -> None:
        server = self.server
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.seen_keys.add(self.headers.get("Authorization", ""))
        try:
            body = json.loads(raw)
            chat = self.path.endswith("chat/completions")
            prompt = body["messages"][-1]["content"] if chat else body["prompt"]
            assert isinstance(prompt, str) and body["model"] == "demo"
            assert isinstance(body.get("temperature", 0), (int, float))
            limit = body.get("max_tokens", 16)
            assert isinstance(limit, int) and limit > 0
            most = server.limit + 1 if server.fault == "takes_one_more" else server.limit
            if len(prompt.split()) + limit > most:
                told = f"the maximum context length is {server.limit}"
                self._send(400, {"error": {"message": told}})
                return
        except (ValueError, KeyError, AssertionError, IndexError, TypeError):
            if server.fault == "dies_of_bad_input":
                server.fault = "garbage"
            self._send(500 if server.fault == "bad_is_5xx" else 400, {"error": {"message": "bad request"}})
            return
        server.asked += 1
        if server.fault == "drop_2" and server.asked % 50 == 0:
            self._send(502, {"error": {"message": "bad gateway"}})
            return
        if server.fault == "cut_2" and server.asked % 50 == 0:
            self.close_connection = True  # a proxy that drops the connection without a word
            return
        if server.fault == "5xx" and server.asked % 20 == 0:
            self._send(500, {"error": {"message": "boom"}})
            return
        if server.fault == "slow":
            time.sleep(0.1)
        text = server.answer(prompt)
        if server.fault == "garbage":
            text = " the the of 1 1 1"
        if server.fault == "empty_16" and server.asked % 6 == 0:
            text = ""
        words = re.findall(r"\s*\S+", text)[:limit]
        finish = "stop"
        count = len(prompt.split())
        if server.fault == "two_token_word":
            count += prompt.split().count("people")
        usage: dict[str, Any] = {
            "prompt_tokens": count,
            "completion_tokens": len(words),
            "total_tokens": count + len(words),
        }
        if server.fault == "cached":
            usage["prompt_tokens_details"] = {"cached_tokens": count // 2}
        if body.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            with server.lock:
                server.running += 1
            try:
                self._stream(words, usage, chat)
            except OSError:  # the client is gone
                if server.fault == "keeps_aborted":
                    time.sleep(30)
            finally:
                with server.lock:
                    server.running -= 1
            return
        said: Any = "".join(words)
        if server.fault == "parts_2" and server.asked % 50 == 0:
            said = [{"type": "text", "text": said}]  # content in parts, which some servers send
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": said}
        self._send(200, {"id": "x", "model": "demo", "choices": [choice], "usage": usage})
