"""The checks about answers. Each asks the server something and says what it saw; none decides the exit code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from megamoe.smoke.abort import abort_frees
from megamoe.smoke.ask import Target, complete, garbage, text_of
from megamoe.smoke.tokens import token_buckets, token_limit

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "England": "London",
    "Greece": "Athens",
    "Egypt": "Cairo",
}


def _capital_of(country: str) -> str:
    return f"The capital of {country} is"


def known_answer(target: Target) -> tuple[str, str]:
    text = text_of(complete(target, _capital_of("France"), 12))
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


def _adds_up(use: dict[str, Any], most: int) -> bool:
    return bool(
        use["prompt_tokens"] > 0
        and 0 < use["completion_tokens"] <= most
        and use["prompt_tokens"] + use["completion_tokens"] == use["total_tokens"]
    )


def usage(target: Target) -> tuple[str, str]:
    response = complete(target, "Count: one, two, three,", 8)
    response.raise_for_status()
    use = response.json()["usage"]
    return ("pass" if _adds_up(use, 8) else "fail"), f"usage {use}"


def stream(target: Target) -> tuple[str, str]:
    """Chunks arrive over time, the last one carries a usage that adds up, and the text is that of a plain request."""
    prompt, most = "Count: one, two, three,", 16
    arrivals: list[float] = []
    text, done, use = "", False, None
    begun = time.monotonic()
    with target.http.stream(
        "POST",
        "/v1/completions",
        json={
            "model": target.model,
            "prompt": prompt,
            "max_tokens": most,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
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
            event = json.loads(payload)
            use = event.get("usage") or use
            for choice in event.get("choices", []):
                piece = choice.get("text") or ""
                if piece:
                    text += piece
                    arrivals.append(time.monotonic())
    if not done:
        return "fail", f"the stream ended without [DONE] after {len(arrivals)} chunks"
    if len(arrivals) < 2:
        return "fail", f"{len(arrivals)} chunks: the answer does not arrive over time (a buffering proxy does this)"
    spread, took = arrivals[-1] - arrivals[0], arrivals[-1] - begun
    seen = f"{len(arrivals)} chunks over {spread:.2f} s of {took:.2f} s"
    # A proxy that buffers hands all chunks over at the end, within a few thousandths of the whole time.
    if spread < 0.05 * took:
        return "fail", f"{seen}: they arrive all at once (a buffering proxy does this)"
    if use is None:
        return "warn", f"{seen}; the stream carries no usage, so its tokens cannot be counted"
    # A chunk may hold several tokens, never a part of one.
    if not _adds_up(use, most) or use["completion_tokens"] < len(arrivals):
        return "fail", f"{seen}; its usage does not add up: {use}"
    whole = text_of(complete(target, prompt, most))
    same = (
        "same text as without streaming" if whole == text else "another text than without streaming (see determinism)"
    )
    return "pass", f"{seen}, {use['completion_tokens']} tokens by its usage, {same}"


def determinism(target: Target) -> tuple[str, str]:
    def ask(_: int) -> str:
        return text_of(complete(target, "List three colours:", 12))

    alone = {ask(i) for i in range(3)}
    with ThreadPoolExecutor(4) as pool:
        together = set(pool.map(ask, range(4)))
    caveat = "batching and atomics may reorder sums, so this is no fault by itself"
    if len(alone) > 1:
        return "warn", f"{len(alone)} different answers of 3 at temperature 0, asked one at a time: {caveat}"
    if together != alone:
        return "pass", (
            f"three equal answers at temperature 0, asked one at a time; {len(together | alone)} different ones with "
            f"four at once: {caveat}"
        )
    return "pass", "seven equal answers at temperature 0: three one at a time, four at once"


def concurrency(target: Target) -> tuple[str, str]:
    """Eight different questions at once: every one answered, and none with a neighbour's answer."""
    with ThreadPoolExecutor(len(CAPITALS)) as pool:
        texts = list(pool.map(lambda c: text_of(complete(target, _capital_of(c), 12)), CAPITALS))
    bad = [c for c, t in zip(CAPITALS, texts, strict=True) if garbage(t)]
    if bad:
        return "fail", f"{len(bad)} of {len(texts)} answers are empty, NUL or one character ({', '.join(bad)})"
    mixed = [
        f"{country}: {text!r}"
        for (country, own), text in zip(CAPITALS.items(), texts, strict=True)
        if own not in text and any(other in text for other in CAPITALS.values())
    ]
    right = sum(own in text for own, text in zip(CAPITALS.values(), texts, strict=True))
    seen = f"{len(texts)} requests at once, {right} name their own capital"
    if len(mixed) > 1:
        return "fail", f"{seen}, {len(mixed)} name another's: answers may be mixed up ({'; '.join(mixed[:2])})"
    return ("pass" if right else "fail"), seen


BAD_REQUESTS: dict[str, dict[str, Any]] = {
    "max_tokens as text": {"max_tokens": "many"},
    "unknown model": {"model": "no-such"},
    "prompt as number": {"prompt": 7},
    "temperature as text": {"temperature": "hot"},
}
# Refused by some engines and clamped by others; either is an answer, a 5xx or silence is not.
ODD_REQUESTS: dict[str, dict[str, Any]] = {"max_tokens 0": {"max_tokens": 0}}


def bad_input(target: Target) -> tuple[str, str]:
    wrong, tolerated = [], []
    before = text_of(complete(target, _capital_of("France"), 8))
    for name, change in {**BAD_REQUESTS, **ODD_REQUESTS}.items():
        body = {"model": target.model, "prompt": "Hi", "max_tokens": 4, **change}
        code = target.http.post("/v1/completions", json=body).status_code
        if name in ODD_REQUESTS and code == 200:
            tolerated.append(name)
        elif not 400 <= code < 500:
            wrong.append(f"{name}: {code}")
    code = target.http.post(
        "/v1/completions", content=b'{"model": ', headers={"Content-Type": "application/json"}
    ).status_code
    if not 400 <= code < 500:
        wrong.append(f"malformed JSON: {code}")
    after = text_of(complete(target, _capital_of("France"), 8))
    if garbage(after) or ("Paris" in before) > ("Paris" in after):
        return "fail", f"after bad input the server answers {after!r}, before it answered {before!r}"
    if wrong:
        return "fail", f"not refused with 4xx: {', '.join(wrong)}"
    refused = len(BAD_REQUESTS) + len(ODD_REQUESTS) + 1 - len(tolerated)
    seen = f"{refused} bad requests refused with 4xx, it lives"
    return ("warn", f"{seen}; answered though odd: {', '.join(tolerated)}") if tolerated else ("pass", seen)


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
