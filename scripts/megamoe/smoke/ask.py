"""How smoke asks: the target, one completion, and what may be said of its text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: str  # pass, warn, fail, not_run
    detail: str
    seconds: float = 0.0
    unreachable: bool = False  # the server did not answer at all: asking on would only cost time


@dataclass(slots=True)
class Target:
    """One server. `launches` reads the fused kernels' counters, all ranks together; None without evidence files."""

    http: httpx.Client
    model: str
    max_model_len: int | None
    max_batched: int
    launches: Callable[[], int] | None = None
    seed: int = field(default_factory=time.time_ns)  # another text in every smoke, so that no prefix cache answers


def timed(name: str, work: Callable[[], tuple[str, str]]) -> Check:
    begun = time.monotonic()
    lost = False
    try:
        status, detail = work()
    except httpx.HTTPError as error:
        status, detail = "fail", f"{type(error).__name__}: {error}"
        lost = isinstance(error, (httpx.ConnectError, httpx.TimeoutException))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        status, detail = "fail", f"the answer has not the OpenAI form: {type(error).__name__}: {error}"
    return Check(name, status, detail, round(time.monotonic() - begun, 2), lost)


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
