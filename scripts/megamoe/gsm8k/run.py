"""Runs the harness as a child process and records the run: OUT/{run,result}.json, {journal,samples}.jsonl."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Outcome
from megamoe.gate.policy import load_policy
from megamoe.gsm8k.dataset import check_counts, load_questions
from megamoe.gsm8k.endpoint import api_key, base_url, client, served_model, server_started
from megamoe.gsm8k.outcome import outcome_of, progress_line
from megamoe.gsm8k.record import count_requests, deployment, epoch, open_run, ranks_seen, write
from megamoe.gsm8k.task import task_config, write_task
from megamoe.resources import checkout_root

HERE = Path(__file__).resolve().parent
EARLY_FAIL_EXIT = 11  # harness.EARLY_FAIL_EXIT; the harness cannot be imported from here
SETUP = HERE.parent / "validation" / "setup_lm_eval.sh"


@dataclass(frozen=True, slots=True)
class Request:
    """What `megamoe gsm8k` was given."""

    url: str
    dataset: str
    out: str
    policy: str = "v4-pro-fused"
    fewshot: str | None = None
    limit: int | None = None
    num_fewshot: int | None = None
    concurrency: int = 64
    endpoint: str | None = None
    max_gen_toks: int | None = None
    max_retries: int = 3
    timeout: float = 300.0
    model: str | None = None
    server_started: str | None = None
    image_created: str | None = None
    image_digest: str | None = None
    deploy: str | None = None
    status_dir: str | None = None
    status_command: str | None = None
    api_key_file: str | None = None
    further: bool = False
    early_stop: bool = True
    fresh: bool = False


def default_venv() -> Path:
    """Where setup_lm_eval.sh makes lm-eval's environment unless told otherwise; it has the same rule."""
    root = checkout_root()
    if root is not None:
        return root / ".venv-lm-eval"
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "megamoe" / "lm-eval"


def harness_python() -> str:
    """lm-eval's interpreter: MEGAMOE_LM_EVAL_VENV, the environment that setup_lm_eval.sh makes, or this interpreter.

    Raises:
        Problem: none of them has lm-eval ("lm_eval_missing", exit 4); `fix` is the whole command to run.
    """
    named = os.environ.get("MEGAMOE_LM_EVAL_VENV")
    for folder in (Path(named) if named else None, default_venv()):
        if folder is not None and (folder / "bin" / "python").exists():
            return str(folder / "bin" / "python")
    from importlib.util import find_spec

    if find_spec("lm_eval"):
        return sys.executable
    raise Problem(
        "lm_eval_missing",
        what=f"lm-evaluation-harness has no environment here: neither {named or default_venv()} nor this interpreter "
        "has it",
        why="it is the engine of gsm8k and is kept apart from the CLI, whose pins and its would fight",
        fix=f"run: bash {SETUP} (it installs from the package index, hashes checked; MEGAMOE_LM_EVAL_VENV "
        "names another place)",
        exit_code=Exit.PRECONDITION,
    )


def run_gsm8k(ask: Request) -> Outcome:
    """Asks the questions and leaves the evidence in `out`.

    Raises:
        Problem: bad data set, policy or options (exit 2), no server (3), no lm-eval (4), another model or a harness
            that failed (1); a run that was begun is kept and marked partial.
    """
    policy = load_policy(ask.policy)
    questions, dataset_hash = load_questions(ask.dataset)
    fewshot = Path(ask.fewshot) if ask.fewshot else HERE / "fewshot.jsonl"
    examples, fewshot_hash = load_questions(fewshot)
    shots = policy.num_fewshot if ask.num_fewshot is None else ask.num_fewshot
    check_counts(len(questions), len(examples), shots, ask.limit, 0 if ask.further else policy.n_required)
    python = harness_python()
    base, key = base_url(ask.url), api_key(ask.api_key_file)
    http = client(base, key, ask.timeout)
    http.timeout = min(ask.timeout, 30.0)  # an answer may take long, a model list may not
    model, _ = served_model(http, ask.model)
    ranks = ranks_seen(ask.status_dir, ask.status_command)
    given = epoch(ask.server_started, "--server-started")

    def seen_start(seen: dict[str, Any] | None) -> float | None:
        told = server_started(http)
        return float(min(r["started_at"] for r in seen.values())) if told is None and seen else told

    seen = seen_start(ranks)
    started = seen if given is None else given
    endpoint = ask.endpoint or policy.endpoint or "completions"
    tokens = ask.max_gen_toks or policy.max_gen_toks or (2048 if endpoint == "chat" else 256)
    total = ask.limit or len(questions)
    fingerprint = hashlib.sha256(
        json.dumps([base, model, endpoint, tokens, shots, ask.limit, dataset_hash, fewshot_hash]).encode()
    ).hexdigest()
    out = Path(ask.out)
    record = open_run(out, fingerprint, started, ask.fresh)
    write_task(
        out / "task",
        task_config(
            Path(ask.dataset), fewshot, shots, {"dataset_sha256": dataset_hash, "fewshot_sha256": fewshot_hash}
        ),
    )
    record |= deployment(ask.deploy, ask.image_digest) | {
        "server_started": record.get("server_started", started),
        "ranks": record.get("ranks", ranks),
        "client_exit": None,
        "results_dir": str(out.resolve()),
        "status": "partial",
        "url": base,
        "model": model,
        "endpoint": endpoint,
        "num_fewshot": shots,
        "max_gen_toks": tokens,
        "concurrency": ask.concurrency,
        "questions": total,
        "policy": policy.name,
        "dataset": Path(ask.dataset).name,
        "dataset_sha256": dataset_hash,
        "fewshot_sha256": fewshot_hash,
        "image_created": epoch(ask.image_created, "--image-created"),
        "command": ["megamoe", *sys.argv[1:]],  # holds no key: keys come from a file or the environment
        "sessions": record.get("sessions", 0) + 1,
    }
    write(out / "run.json", record)
    suffix = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
    config = {
        "out": str(out),
        "journal": str(out / "journal.jsonl"),
        "task_dir": str(out / "task"),
        "task": "gsm8k",
        "url": base + suffix,
        "model": model,
        "endpoint": endpoint,
        "num_fewshot": shots,
        "limit": ask.limit,
        "concurrency": ask.concurrency,
        "max_retries": ask.max_retries,
        "timeout_s": ask.timeout,
        "max_gen_toks": tokens,
        "backoff_s": 0.5,
        "progress_s": 1.0,
        "seed": 1234,
        "filter": policy.filter_name,
        "run_id": record["run_id"],
        "run_started": record["started"],
        "session": record["sessions"],
        "stop_floor": policy.stop_floor if ask.early_stop else None,
        "stop_alpha": policy.sequential_alpha,
    }
    write(out / "harness.json", config)
    code, last, early, refusal = _harness(python, out, key)
    requests = count_requests(out / "journal.jsonl")
    ranks_after = ranks_seen(ask.status_dir, ask.status_command)
    # A given start cannot tell of a restart within the run; what the server itself said before and says now can.
    seen_after = seen_start(ranks_after)
    same = seen is None or seen_after is None or abs(seen_after - seen) <= 2
    record |= {
        "client_exit": code,
        "requests": requests,
        "refused": requests["refused"],
        "server_watch": "broken" if requests["refused"] else "unbroken",
        "server_started_at_end": record["server_started"] if same else seen_after,
        "ranks_at_end": ranks_after,
        "ended": time.time(),
        "status": "complete" if code == 0 else "early_fail" if code == EARLY_FAIL_EXIT else "partial",
        "early_fail": early,
    }
    write(out / "run.json", record)
    return outcome_of(policy, out, record, last, refusal, total, ask.policy)


def _harness(
    python: str, out: Path, key: str | None
) -> tuple[int, dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]:
    """Exit code, last progress, the early stop and the first refused request, where there were any."""
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str((out / "cache").resolve()),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": "",
        "OPENAI_API_KEY": key or "none",
    }
    env.pop("MEGAMOE_API_KEY", None)
    last: dict[str, Any] = {}
    early = refusal = None
    with (
        (out / "harness.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [python, str(HERE / "harness.py"), str(out / "harness.json")],
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        try:
            for line in child.stdout:
                try:
                    event = json.loads(line)
                except json.JSONDecodeError:
                    continue  # lm-eval prints a few lines of its own
                if event.get("event") == "progress":
                    last = event
                    print(progress_line(event), file=sys.stderr, flush=True)
                elif event.get("event") == "early_fail":
                    early = event
                elif event.get("event") == "refused":
                    refusal = refusal or event
        except KeyboardInterrupt:
            child.terminate()
            raise
    return child.returncode, last, early, refusal
