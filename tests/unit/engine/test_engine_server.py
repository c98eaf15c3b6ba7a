"""A real server process on a tiny model: routes, refusals, clients that leave, the end."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_support import MEGA, MEGA_FLAGS, Running
from megamoe.status.read import judge_evidence, read_status

GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


def post(server: Running, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def events(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]


def test_the_model_list_names_the_path_given(server: Running) -> None:
    models = httpx.get(server.url + "/v1/models").json()["data"]
    assert [m["id"] for m in models] == [server.model]


def test_a_text_and_its_token_ids_give_the_same_completion(server: Running, text: Any) -> None:
    one, two = post(server, prompt="hello", **GREEDY).json(), post(server, prompt=text.encode("hello"), **GREEDY).json()
    assert one["choices"] == two["choices"]
    assert one["usage"]["prompt_tokens"] == len(text.encode("hello"))
    assert one["usage"]["completion_tokens"] == 6
    assert one["choices"][0]["finish_reason"] == "length"


def test_batched_prompts_answer_each_at_its_index(server: Running) -> None:
    batch = post(server, prompt=["hello", "other words", "third"], **GREEDY).json()
    singles = [post(server, prompt=p, **GREEDY).json()["choices"][0]["text"] for p in ("hello", "other words", "third")]
    assert [c["index"] for c in batch["choices"]] == [0, 1, 2]
    assert [c["text"] for c in batch["choices"]] == singles
    assert batch["usage"]["completion_tokens"] == 18


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ],
    ids=["completions", "chat"],
)
def test_a_stream_joins_to_the_plain_answer_and_ends_with_usage(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    plain = post(server, path, **body, **GREEDY).json()
    stream = post(server, path, **body, **GREEDY, stream=True, stream_options={"include_usage": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(stream)
    choices = [json.loads(c)["choices"][0] for c in chunks]
    joined = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)
    whole = plain["choices"][0]
    assert joined == (whole["text"] if "text" in whole else whole["message"]["content"])
    assert choices[-1]["finish_reason"] == "length"
    assert json.loads(usage)["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert done == "[DONE]"


def test_a_seed_makes_sampling_repeatable(server: Running) -> None:
    body = {"prompt": "hello", "max_tokens": 12, "temperature": 1.5, "ignore_eos": True}
    texts = [post(server, **body, seed=s).json()["choices"][0]["text"] for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_stop_string_ends_the_text_before_it(server: Running) -> None:
    full = post(server, prompt="hello", **GREEDY).json()["choices"][0]["text"]
    stop = full[2:4]
    cut = post(server, prompt="hello", **GREEDY, stop=stop).json()["choices"][0]
    assert cut["text"] == full[: full.index(stop)] and cut["finish_reason"] == "stop"


def test_a_prompt_longer_than_the_step_budget_is_read_in_chunks(server: Running) -> None:
    answer = post(server, prompt=[50] * 100, **GREEDY).json()
    assert answer["usage"]["prompt_tokens"] == 100


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        pytest.param({"prompt": "a", "max_tokens": 0}, "out_of_range", "max_tokens", id="max_tokens 0"),
        pytest.param(
            {"prompt": "a", "max_tokens": 256}, "context_length_exceeded", "max_tokens", id="max_tokens just too large"
        ),
        pytest.param({"prompt": [9] * 256}, "context_length_exceeded", "prompt", id="prompt as long as the context"),
        pytest.param({"prompt": "a", "max_tokens": "5"}, "wrong_type", "max_tokens", id="max_tokens a text"),
        pytest.param({"prompt": "a", "max_tokens": True}, "wrong_type", "max_tokens", id="max_tokens true"),
        pytest.param({"prompt": {"a": 1}}, "wrong_type", "prompt", id="prompt an object"),
        pytest.param({"prompt": ["a", 5]}, "wrong_type", "prompt", id="prompt mixed"),
        pytest.param({"prompt": [5, 260]}, "out_of_range", "prompt", id="token id at the vocabulary's size"),
        pytest.param({"prompt": ""}, "empty_prompt", "prompt", id="empty prompt"),
        pytest.param({}, "missing_field", "prompt", id="no prompt"),
        pytest.param({"prompt": "a", "model": "gpt"}, "model_not_found", "model", id="unknown model"),
        pytest.param({"prompt": "a", "temperature": -1}, "out_of_range", "temperature", id="negative temperature"),
        pytest.param({"prompt": "a", "top_p": 0}, "out_of_range", "top_p", id="top_p 0"),
        pytest.param({"prompt": "a", "n": 2}, "unsupported_value", "n", id="n 2"),
        pytest.param({"prompt": "a", "logprobs": 5}, "unsupported_value", "logprobs", id="logprobs"),
        pytest.param({"prompt": "a", "guided_regex": "x"}, "unsupported_field", "guided_regex", id="unknown field"),
    ],
)
def test_a_bad_request_is_a_400_that_names_the_field(
    server: Running, body: dict[str, Any], code: str, param: str
) -> None:
    response = post(server, **body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert error["message"]


def test_the_largest_max_tokens_that_fits_is_accepted(server: Running) -> None:
    answer = post(server, prompt=[9] * 250, max_tokens=6, temperature=0, ignore_eos=True)
    assert answer.status_code == 200 and answer.json()["usage"]["total_tokens"] == 256


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        pytest.param(b'{"prompt": "a"', 400, "malformed_json", id="cut off"),
        pytest.param(b"\xff\xfe", 400, "malformed_json", id="not text"),
        pytest.param(b"[1]", 400, "wrong_type", id="not an object"),
        pytest.param(b"[" * 100_000, 400, "malformed_json", id="nested without end"),
        pytest.param(b'{"prompt": "' + b"a" * 10_000_000 + b'"}', 413, "body_too_large", id="10 MB"),
    ],
)
def test_a_body_that_is_no_request_is_refused_and_the_server_lives(
    server: Running, content: bytes, status: int, code: str
) -> None:
    response = httpx.post(server.url + "/v1/completions", content=content, timeout=60)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert httpx.get(server.url + "/health").status_code == 200


def test_unknown_routes_and_methods_answer_json(server: Running) -> None:
    assert httpx.get(server.url + "/v2").json()["error"]["code"] == "not_found"
    assert httpx.get(server.url + "/v1/completions").json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slots(server: Running, stream: bool) -> None:
    before = server.metric("sequences_cancelled_total")
    body = json.dumps({"prompt": ["a"] * 4, "max_tokens": 250, "stream": stream, "ignore_eos": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        deadline = time.monotonic() + 20
        while server.metric("sequences_running") < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    while server.metric("sequences_running") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.metric("sequences_cancelled_total") - before == 4


def test_every_rank_leaves_evidence_that_grows(server: Running, status_dir: Path) -> None:
    def launches() -> list[int]:
        return [json.loads((status_dir / f"rank-{r}.json").read_text())["launches"] for r in range(2)]

    before = launches()
    time.sleep(1.1)  # files are replaced at most once a second
    post(server, prompt="hello", **GREEDY)
    assert all(now > then for now, then in zip(launches(), before, strict=True))
    # What `megamoe status` and smoke would say of it.
    assert judge_evidence(read_status(str(status_dir), None)) == []


def test_sigterm_finishes_what_runs_refuses_what_comes_and_exits_0(start: Callable[..., Running]) -> None:
    server = start()
    server.wait_ready()
    answers: list[httpx.Response] = []
    client = threading.Thread(
        target=lambda: answers.append(post(server, prompt="hello", max_tokens=240, temperature=0, ignore_eos=True))
    )
    client.start()
    while not server.metric("sequences_running"):
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    client.join(60)
    assert answers[0].json()["usage"]["completion_tokens"] == 240
    assert server.process.wait(30) == 0
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url + "/health")


def test_a_port_in_use_is_refused_with_exit_4(start: Callable[..., Running]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        second = start("--server-port", str(taken.getsockname()[1]))
        assert second.process.wait(20) == 4
    assert "port_in_use" in second.log.read_text() and "Traceback" not in second.log.read_text()


def test_a_missing_model_is_refused_with_exit_4(start: Callable[..., Running]) -> None:
    refused = start("--model", "/no/such/model")
    assert refused.process.wait(20) == 4
    assert "model_missing" in refused.log.read_text()


def test_a_model_directory_with_a_short_file_is_refused(
    start: Callable[..., Running], model_dir: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "model"
    broken.mkdir()
    for path in model_dir.iterdir():
        (broken / path.name).write_bytes(path.read_bytes()[: -1 if path.suffix == ".safetensors" else None])
    refused = start("--model", str(broken))
    assert refused.process.wait(20) == 4
    assert "model_incomplete" in refused.log.read_text()


def test_the_self_test_stops_a_mispaired_start(start: Callable[..., Running]) -> None:
    refused = start(*MEGA_FLAGS, **MEGA, MEGAMOE_REHEARSAL_FAULT="gate_up_mispaired")
    assert refused.process.wait(60) == 1
    assert "[selftest]" in refused.log.read_text()


def test_with_the_self_test_off_a_mispaired_server_answers_otherwise(
    start: Callable[..., Running], server: Running
) -> None:
    wrong = start(*MEGA_FLAGS, **MEGA, MEGAMOE_REHEARSAL_FAULT="gate_up_mispaired", MEGAMOE_SELFTEST="off")
    wrong.wait_ready()
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    assert post(wrong, **body).json()["choices"] != post(server, **body).json()["choices"]
    assert "SELF-TEST OFF" in wrong.log.read_text()


def test_the_planted_http_fault_fails_every_twentieth_request(start: Callable[..., Running]) -> None:
    server = start(MEGAMOE_REHEARSAL_FAULT="http_5xx")
    server.wait_ready()
    codes = [post(server, prompt="a", max_tokens=1).status_code for _ in range(40)]
    assert [i + 1 for i, code in enumerate(codes) if code != 200] == [20, 40]


def test_the_planted_never_ready_fault_keeps_the_port_closed_and_ends_on_sigterm(start: Callable[..., Running]) -> None:
    server = start(MEGAMOE_REHEARSAL_FAULT="never_ready")
    deadline = time.monotonic() + 60
    while "never_ready: the port stays closed" not in server.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/health")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0
