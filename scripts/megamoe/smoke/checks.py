"""The smoke checks. Each asks the server something and returns what it saw; none prints or decides the exit code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: str  # pass, warn, fail, not_run
    detail: str
    seconds: float = 0.0


@dataclass(slots=True)
class Target:
    http: httpx.Client
    model: str
    max_model_len: int | None
    max_batched: int


def timed(name: str, work: Callable[[], tuple[str, str]]) -> Check:
    begun = time.monotonic()
    try:
        status, detail = work()
    except httpx.HTTPError as error:
        status, detail = "fail", f"{type(error).__name__}: {error}"
    except (ValueError, KeyError, IndexError, TypeError) as error:
        status, detail = "fail", f"the answer has not the OpenAI form: {type(error).__name__}: {error}"
    return Check(name, status, detail, round(time.monotonic() - begun, 2))


def complete(target: Target, prompt: str, max_tokens: int = 16, **more: Any) -> httpx.Response:
    return target.http.post(
        "/v1/completions",
        json={"model": target.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more},
    )


def text_of(response: httpx.Response) -> str:
    response.raise_for_status()
    choice = response.json()["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    if not isinstance(text, str):
        raise TypeError(f"the text is {text!r}")
    return text


def garbage(text: str) -> str | None:
    """Why a text is no answer: empty, NUL, or one character over and over; None when it reads like text."""
    if not text.strip():
        return "it is empty"
    if "\x00" in text:
        return "it holds NUL characters"
    return "it repeats at most two characters" if len(text.strip()) > 8 and len(set(text.strip())) <= 2 else None


def known_answer(target: Target) -> tuple[str, str]:
    text = text_of(complete(target, "The capital of France is", 12))
    bad = garbage(text)
    if bad:
        return "fail", f"{text!r}: {bad}"
    return ("pass" if "Paris" in text else "fail"), f"'The capital of France is' -> {text!r}"


def chat(target: Target) -> tuple[str, str]:
    response = target.http.post(
        "/v1/chat/completions",
        json={
            "model": target.model,
            "max_tokens": 32,
            "temperature": 0,
            "messages": [{"role": "user", "content": "What is the capital of France? Answer in one word."}],
        },
    )
    text = text_of(response)
    bad = garbage(text)
    return ("fail", f"{text!r}: {bad}") if bad else ("pass" if "Paris" in text else "warn", f"answer {text!r}")


def usage(target: Target) -> tuple[str, str]:
    response = complete(target, "Count: one, two, three,", 8)
    response.raise_for_status()
    use = response.json()["usage"]
    good = (
        use["prompt_tokens"] > 0
        and 0 < use["completion_tokens"] <= 8
        and (use["prompt_tokens"] + use["completion_tokens"] == use["total_tokens"])
    )
    return ("pass" if good else "fail"), f"usage {use}"


def stream(target: Target) -> tuple[str, str]:
    arrivals: list[float] = []
    text, done = "", False
    with target.http.stream(
        "POST",
        "/v1/completions",
        json={
            "model": target.model,
            "prompt": "Count: one, two, three,",
            "max_tokens": 16,
            "temperature": 0,
            "stream": True,
        },
    ) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data:"):
                continue
            payload = line[5:].strip()
            if payload == "[DONE]":
                done = True
                break
            for choice in json.loads(payload).get("choices", []):
                piece = choice.get("text") or ""
                if piece:
                    text += piece
                    arrivals.append(time.monotonic())
    if not done:
        return "fail", f"the stream ended without [DONE] after {len(arrivals)} chunks"
    if len(arrivals) < 2:
        return "fail", f"{len(arrivals)} chunks: the answer does not arrive over time (a buffering proxy does this)"
    spread = arrivals[-1] - arrivals[0]
    whole = text_of(complete(target, "Count: one, two, three,", 16))
    same = "same text as without streaming" if whole == text else "another text than without streaming"
    return ("pass" if spread > 0.001 else "fail"), f"{len(arrivals)} chunks over {spread:.2f} s, {same}"


def determinism(target: Target) -> tuple[str, str]:
    texts = {text_of(complete(target, "List three colours:", 24)) for _ in range(3)}
    if len(texts) == 1:
        return "pass", "three equal answers at temperature 0, one at a time"
    return "warn", (
        f"{len(texts)} different answers of 3 at temperature 0: batching and atomics may reorder sums, so this "
        "is no fault by itself"
    )


def concurrency(target: Target) -> tuple[str, str]:
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda i: text_of(complete(target, f"{i} plus {i + 1} equals", 8)), range(8)))
    bad = [t for t in texts if garbage(t) == "it holds NUL characters" or not t]
    return ("fail", f"{len(bad)} of 8 answers are empty or NUL") if bad else ("pass", "8 requests at once, 8 answers")


BAD_REQUESTS: dict[str, dict[str, Any]] = {
    "max_tokens 0": {"max_tokens": 0},
    "max_tokens as text": {"max_tokens": "many"},
    "unknown model": {"model": "no-such"},
    "prompt as number": {"prompt": 7},
    "temperature as text": {"temperature": "hot"},
}


def bad_input(target: Target) -> tuple[str, str]:
    wrong = []
    for name, change in BAD_REQUESTS.items():
        body = {"model": target.model, "prompt": "Hi", "max_tokens": 4, **change}
        code = target.http.post("/v1/completions", json=body).status_code
        if not 400 <= code < 500:
            wrong.append(f"{name}: {code}")
    code = target.http.post(
        "/v1/completions", content=b'{"model": ', headers={"Content-Type": "application/json"}
    ).status_code
    if not 400 <= code < 500:
        wrong.append(f"malformed JSON: {code}")
    alive = not garbage(text_of(complete(target, "The capital of France is", 8)))
    if not alive:
        return "fail", "the server does not answer after bad input"
    count = len(BAD_REQUESTS) + 1
    return (
        ("fail", f"not refused with 4xx: {', '.join(wrong)}")
        if wrong
        else ("pass", f"{count} bad requests refused, it lives")
    )


def _prompt_of(target: Target, tokens: int) -> str:
    return "one " * max(tokens, 1)


def _count(response: httpx.Response) -> int:
    response.raise_for_status()
    return int(response.json()["usage"]["prompt_tokens"])


def token_buckets(target: Target) -> tuple[str, str]:
    """One prompt near each power of two up to the limit: each is another kernel bucket."""
    seen = []
    size = 16
    limit = min(target.max_batched, (target.max_model_len or target.max_batched) - 4)
    while size <= limit:
        response = complete(target, _prompt_of(target, int(size * 0.9)), 2)
        if response.status_code == 400 and seen and target.max_model_len is None:
            return "warn", f"prompts of {', '.join(map(str, seen))} tokens answered; about {size} are refused with 400"
        seen.append(_count(response))
        bad = garbage(response.json()["choices"][0]["text"] or "")
        if bad and "NUL" in bad:
            return "fail", f"at {seen[-1]} prompt tokens: {bad}"
        size *= 2
    return "pass", f"prompts of {', '.join(map(str, seen))} tokens answered"


def token_limit(target: Target) -> tuple[str, str]:
    if target.max_model_len is None:
        return "not_run", "the server does not tell its max_model_len; pass --max-model-len"
    below = _prompt_of(target, int(target.max_model_len * 0.9) - 8)
    under = complete(target, below, 2)
    over = complete(target, _prompt_of(target, target.max_model_len + 64), 2)
    if under.status_code != 200:
        return (
            "fail",
            f"a prompt of about 90 % of max_model_len {target.max_model_len} is refused with {under.status_code}",
        )
    if not 400 <= over.status_code < 500:
        return "fail", f"a prompt longer than max_model_len {target.max_model_len} is answered with {over.status_code}"
    return (
        "pass",
        f"{_count(under)} prompt tokens answered, more than {target.max_model_len} refused with {over.status_code}",
    )


def abort_frees(target: Target) -> tuple[str, str]:
    for _ in range(4):
        with target.http.stream(
            "POST",
            "/v1/completions",
            json={
                "model": target.model,
                "prompt": "Tell a long story.",
                "max_tokens": 256,
                "temperature": 0,
                "stream": True,
            },
        ) as response:
            response.raise_for_status()
            next(response.iter_lines(), None)
    begun = time.monotonic()
    text_of(complete(target, "The capital of France is", 8))
    took = time.monotonic() - begun
    return ("pass" if took < 15 else "fail"), f"4 streams dropped after the first chunk; next answer in {took:.2f} s"


CHECKS: tuple[tuple[str, Callable[[Target], tuple[str, str]]], ...] = (
    ("known answer", known_answer),
    ("chat", chat),
    ("usage", usage),
    ("streaming", stream),
    ("concurrency", concurrency),
    ("determinism", determinism),
    ("token buckets", token_buckets),
    ("token limit", token_limit),
    ("bad input", bad_input),
    ("abort frees its slot", abort_frees),
)
