#!/usr/bin/env python3
"""CPU time of `megamoe gsm8k` beside plain `lm_eval`: same endpoint, same questions, same prompts, in turns.

    scripts/bench_gsm8k_client.py DATASET.jsonl [--limit N] [--concurrency 64] [--repeats 3] [--latency-ms 30]

The endpoint is a process of its own that answers each question after a fixed time with a worked answer. User and system
time of each client and all its children are counted, start-up included. Prints JSON. Needs lm-eval's environment
(scripts/setup_lm_eval.sh).
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from megamoe.gsm8k.dataset import load_questions
from megamoe.gsm8k.run import HERE, harness_python
from megamoe.gsm8k.task import task_config, write_task

# About as long as an answer of GSM8K; the number in it is right for none or few of the questions, which costs the same.
ANSWER = " First she has 3 and then gets 4 more, so she has 3 + 4 = <<3+4=7>>7 of them." * 4 + "\n#### 7"


async def _serve(latency_s: float) -> None:
    """A minimal OpenAI-compatible endpoint; prints its port."""
    body = {"id": "x", "object": "text_completion", "model": "demo", "created": 0}
    choice = {"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 500, "completion_tokens": 90, "total_tokens": 590}
    answer = json.dumps(body | {"choices": [choice], "usage": usage}).encode()
    models = json.dumps({"object": "list", "data": [{"id": "demo", "object": "model"}]}).encode()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = next((int(x[15:]) for x in head.split("\r\n") if x.startswith("content-length:")), 0)
                await reader.readexactly(length)
                payload = models
                if head.startswith("post"):
                    await asyncio.sleep(latency_s)
                    payload = answer
                status = b"404 Not Found" if head.startswith("get /metrics") else b"200 OK"
                writer.write(
                    b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                    % (status, len(payload), payload)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def cpu_of(command: list[str], env: dict[str, str], log: Path) -> tuple[float, float]:
    """CPU seconds (user and system, children included) and wall seconds of a command that must succeed."""
    began = time.monotonic()
    with log.open("wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env)
        _, status, use = os.wait4(child.pid, 0)
    if status != 0:
        raise SystemExit(f"{command[0]} ended with status {status}:\n{log.read_text()[-2000:]}")
    return use.ru_utime + use.ru_stime, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, nargs="?")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(_serve(args.latency_ms / 1000))
        return
    if args.dataset is None:
        parser.error("DATASET is missing")
    questions, digest = load_questions(args.dataset)
    count = args.limit or len(questions)
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", "--latency-ms", str(args.latency_ms)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(_compare(args, Path(folder), url, count, digest), indent=2))
    finally:
        server.terminate()
        server.wait()


def _compare(args: argparse.Namespace, folder: Path, url: str, count: int, digest: str) -> dict[str, object]:
    python = harness_python()
    config = task_config(args.dataset, HERE / "fewshot.jsonl", 3, {})
    write_task(folder / "task", config | {"task": "gsm8k_bench"})
    (folder / "policy.json").write_text(
        json.dumps(
            {"task": "gsm8k", "metric": "exact_match,flexible-extract", "num_fewshot": 3, "n_required": 1, "floor": 0.5}
        )
    )
    limit = ["--limit", str(count)]
    ours = [
        sys.executable, "-m", "megamoe", "gsm8k", url, "--dataset", str(args.dataset), "--policy",
        str(folder / "policy.json"), "--concurrency", str(args.concurrency), "--no-early-stop", "--fresh", *limit,
        "--out", str(folder / "ours"),
    ]  # fmt: skip
    plain = [
        str(Path(python).parent / "lm_eval"), "--model", "local-completions", "--model_args",
        f"model=demo,base_url={url}/v1/completions,num_concurrent={args.concurrency},max_retries=3,"
        "tokenized_requests=False,tokenizer_backend=None,max_gen_toks=256",
        "--tasks", "gsm8k_bench", "--include_path", str(folder / "task"), "--output_path", str(folder / "plain"),
        "--log_samples", *limit,
    ]  # fmt: skip
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        "TOKENIZERS_PARALLELISM": "false",
        "OPENAI_API_KEY": "none",
    }
    runs: dict[str, list[tuple[float, float]]] = {"megamoe gsm8k": [], "lm_eval": []}
    for turn in range(args.repeats):
        pair = [("megamoe gsm8k", ours), ("lm_eval", plain)]
        for name, command in pair if turn % 2 == 0 else reversed(pair):
            runs[name].append(cpu_of(command, env, folder / "log"))
    cpu = {name: statistics.median(c for c, _ in seen) for name, seen in runs.items()}
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "questions": count,
        "dataset_sha256": digest,
        "concurrency": args.concurrency,
        "latency_ms": args.latency_ms,
        "cpu_s_median": {name: round(value, 2) for name, value in cpu.items()},
        "ratio": round(cpu["megamoe gsm8k"] / cpu["lm_eval"], 3),
        "cpu_s": {name: [round(c, 2) for c, _ in seen] for name, seen in runs.items()},
        "wall_s": {name: [round(w, 2) for _, w in seen] for name, seen in runs.items()},
        "machine": {"cpus": os.cpu_count(), "arch": platform.machine(), "load_1m": os.getloadavg()[0]},
    }


if __name__ == "__main__":
    main()
