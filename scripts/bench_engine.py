#!/usr/bin/env python3
"""Measures a running engine's decode speed: one stream, then N at once. Prints JSON; run it on an idle machine.

    scripts/bench_engine.py http://127.0.0.1:8000 [--streams 8] [--tokens 64] [--repeats 3]

Tokens are counted by the server's usage, time by this client, prompt reading included; each figure is the median.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import httpx


def one(client: httpx.Client, url: str, tokens: int, seed: int) -> int:
    """One greedy completion of exactly `tokens` tokens; returns the number that the server says it made."""
    body = {
        "prompt": f"Story number {seed}: once upon a time",
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    response = client.post(url + "/v1/completions", json=body)
    response.raise_for_status()
    return int(response.json()["usage"]["completion_tokens"])


def rate(url: str, streams: int, tokens: int) -> float:
    """Tokens per second of `streams` requests together."""
    with httpx.Client(timeout=600) as client, ThreadPoolExecutor(streams) as pool:
        started = time.perf_counter()
        made = sum(pool.map(lambda seed: one(client, url, tokens, seed), range(streams)))
        return made / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    rate(args.url, 1, 8)  # the first request pays for lazy set-up
    single = [rate(args.url, 1, args.tokens) for _ in range(args.repeats)]
    many = [rate(args.url, args.streams, args.tokens) for _ in range(args.repeats)]
    print(
        json.dumps(
            {
                "one_stream_tokens_per_s": round(statistics.median(single), 1),
                "streams": args.streams,
                "all_streams_tokens_per_s": round(statistics.median(many), 1),
                "ratio": round(statistics.median(many) / statistics.median(single), 2),
                "samples": {"one": [round(s, 1) for s in single], "many": [round(m, 1) for m in many]},
                "tokens_per_request": args.tokens,
                "machine": {"cpus": os.cpu_count(), "arch": platform.machine(), "load_1m_before": os.getloadavg()[0]},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
