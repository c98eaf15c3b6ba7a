"""Does a dropped stream free its slot? Proven by a gauge of running requests, or by kernel launches that stop."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack

import httpx

from megamoe.smoke.ask import Target, complete, text_of

STREAMS = 4
# Names under which engines tell how many requests are being worked on.
_GAUGE = re.compile(
    r"^[\w:]*(?:num_requests_running|num_running_reqs|sequences_running|requests_running)(?:\{[^}]*\})?\s+([0-9.eE+]+)",
    re.MULTILINE,
)
PATIENCE_S = 10.0


def running(target: Target) -> float | None:
    """Requests being worked on by the server's own gauge, all its label sets together; None where it has none."""
    try:
        response = target.http.get("/metrics", timeout=5)
    except httpx.HTTPError:
        return None
    found = _GAUGE.findall(response.text) if response.status_code == 200 else []
    return sum(float(value) for value in found) if found else None


def _settled(target: Target) -> float | None:
    """The gauge once earlier requests have left it: zero, or what it shows after two seconds (others ask, too)."""
    for _ in range(10):
        now = running(target)
        if not now:
            return now
        time.sleep(0.2)
    return now


def abort_frees(target: Target) -> tuple[str, str]:
    """Drops long streams after their first chunk; the server must stop working on them and answer the next request."""
    idle = _settled(target)
    longest = 2048 if target.max_model_len is None else max(64, min(2048, target.max_model_len - 64))
    busy = None
    held = []  # httpx closes a stream whose iterator is dropped
    with ExitStack() as streams:
        for number in range(STREAMS):
            response = streams.enter_context(
                target.http.stream(
                    "POST",
                    "/v1/completions",
                    json={
                        "model": target.model,
                        "prompt": f"Tell long story number {number}.",
                        "max_tokens": longest,
                        "temperature": 0,
                        "ignore_eos": True,
                        "stream": True,
                    },
                )
            )
            response.raise_for_status()
            held.append(response.iter_lines())
            next(held[-1], None)
        if idle is not None:
            busy = running(target)
    begun = time.monotonic()
    text_of(complete(target, "The capital of France is", 8))
    took = time.monotonic() - begun
    dropped = f"{STREAMS} streams of {longest} tokens dropped after the first chunk; next answer in {took:.2f} s"
    if idle is not None and busy is not None and busy > idle:
        return _by_gauge(target, idle, busy, dropped)
    if target.launches is not None:
        return _by_launches(target, dropped)
    why = "has no gauge of running requests"
    if idle is not None:
        why = f"shows {idle:g} running requests without these streams and {busy} with them"
    return "warn", f"{dropped}; the server {why} and no evidence was given, so freed slots are not proven"


def _by_gauge(target: Target, idle: float, busy: float, dropped: str) -> tuple[str, str]:
    begun = time.monotonic()
    while True:
        now = running(target)
        waited = time.monotonic() - begun
        if now is not None and now <= idle:
            return "pass", f"{dropped}; running requests {busy:g}, back to {now:g} within {waited:.1f} s"
        if waited > PATIENCE_S:
            shown = "unknown" if now is None else f"{now:g}"
            return "fail", f"{dropped}; running requests {busy:g}, still {shown} after {waited:.0f} s: slots stay taken"
        time.sleep(0.2)


def _by_launches(target: Target, dropped: str) -> tuple[str, str]:
    """A server that works on nothing launches nothing; evidence files follow the counters within about a second."""
    assert target.launches is not None
    begun = time.monotonic()
    before = target.launches()
    while time.monotonic() - begun < PATIENCE_S:
        time.sleep(2.5)
        after = target.launches()
        if after == before:
            return "pass", f"{dropped}; the fused kernels' launch counters then stand still"
        before = after
    return (
        "fail",
        f"{dropped}; {PATIENCE_S:.0f} s later the kernels still launch: the streams go on, or others ask this server",
    )
