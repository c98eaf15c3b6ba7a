"""Runs the harness as a child process and records the run: OUT/{run,result,requests}.json, {journal,samples}.jsonl."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome
from megamoe.gate.policy import Policy, load_policy
from megamoe.gsm8k.dataset import load_questions
from megamoe.gsm8k.endpoint import api_key, base_url, client, served_model, server_started
from megamoe.gsm8k.task import task_config, write_task
from megamoe.resources import checkout_root

HERE = Path(__file__).resolve().parent
EARLY_FAIL_EXIT = 11  # harness.EARLY_FAIL_EXIT; the harness cannot be imported from here


@dataclass(frozen=True, slots=True)
class Request:
    url: str
    dataset: str
    out: str
    policy: str
    fewshot: str | None
    limit: int | None
    num_fewshot: int | None
    concurrency: int
    endpoint: str | None
    max_gen_toks: int | None
    max_retries: int
    timeout: float
    model: str | None
    server_started: str | None
    image_created: str | None
    image_digest: str | None
    api_key_file: str | None
    early_stop: bool
    fresh: bool


def harness_python() -> str:
    """lm-eval's interpreter: MEGAMOE_LM_EVAL_VENV, .venv-lm-eval of the checkout, or this one if it has lm-eval."""
    named = os.environ.get("MEGAMOE_LM_EVAL_VENV")
    root = checkout_root()
    for folder in (Path(named) if named else None, root / ".venv-lm-eval" if root else None):
        if folder is not None and (folder / "bin" / "python").exists():
            return str(folder / "bin" / "python")
    from importlib.util import find_spec

    if find_spec("lm_eval"):
        return sys.executable
    raise Problem(
        "lm_eval_missing",
        what="lm-evaluation-harness has no environment here",
        why="it is the engine of gsm8k and is kept apart from the CLI",
        fix="run scripts/setup_lm_eval.sh (MEGAMOE_LM_EVAL_VENV names another directory)",
        exit_code=Exit.PRECONDITION,
    )


def run_gsm8k(ask: Request) -> Outcome:
    policy = load_policy(ask.policy)
    questions, dataset_hash = load_questions(ask.dataset)
    fewshot = Path(ask.fewshot) if ask.fewshot else HERE / "fewshot.jsonl"
    examples, fewshot_hash = load_questions(fewshot)
    shots = policy.num_fewshot if ask.num_fewshot is None else ask.num_fewshot
    if ask.limit is not None and ask.limit > len(questions):
        raise Problem(
            "limit_too_large",
            what=f"--limit {ask.limit} is larger than the data set of {len(questions)} questions",
            why="questions would be missing without a word",
            fix=f"use at most --limit {len(questions)}",
        )
    if shots > len(examples):
        raise Problem(
            "fewshot_too_few",
            what=f"{shots} shots from {len(examples)} examples",
            why="the prompt needs them all",
            fix="give a larger --fewshot file",
        )
    python = harness_python()
    base, key = base_url(ask.url), api_key(ask.api_key_file)
    http = client(base, key)
    model, _ = served_model(http, ask.model)
    started = _epoch(ask.server_started, "--server-started") or server_started(http)
    endpoint = ask.endpoint or policy.endpoint or "completions"
    tokens = ask.max_gen_toks or policy.max_gen_toks or (2048 if endpoint == "chat" else 256)
    total = ask.limit or len(questions)
    fingerprint = hashlib.sha256(
        json.dumps([base, model, endpoint, tokens, shots, ask.limit, dataset_hash, fewshot_hash]).encode()
    ).hexdigest()
    out = Path(ask.out)
    record = _open_run(out, fingerprint, started, ask.fresh)
    write_task(
        out / "task",
        task_config(
            Path(ask.dataset), fewshot, shots, {"dataset_sha256": dataset_hash, "fewshot_sha256": fewshot_hash}
        ),
    )
    record |= {
        "server_started": record.get("server_started", started),
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
        "image_created": _epoch(ask.image_created, "--image-created"),
        "image_digest": ask.image_digest,
        "sessions": record.get("sessions", 0) + 1,
    }
    _write(out / "run.json", record)
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
    _write(out / "harness.json", config)
    code, last, early, refusal = _harness(python, out, key, total)
    requests = _add_requests(record.get("requests"), out / "requests.json")
    ended = _epoch(ask.server_started, "--server-started") if ask.server_started else server_started(http)
    watch = "broken" if requests.get("refused") else "unbroken"
    record |= {
        "client_exit": code,
        "requests": requests,
        "refused": requests.get("refused", 0),
        "server_watch": watch,
        "server_started_at_end": ended,
        "ended": time.time(),
        "status": "complete" if code == 0 else "early_fail" if code == EARLY_FAIL_EXIT else "partial",
        "early_fail": early,
    }
    _write(out / "run.json", record)
    return _outcome(policy, out, record, code, last, early, refusal, total)


def _open_run(out: Path, fingerprint: str, started: float | None, fresh: bool) -> dict[str, Any]:
    """The run record to go on with, or a new one; what another run left is kept under previous/."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Problem(
            "out_not_writable",
            what=f"{out} cannot be written: {error.strerror}",
            why="the evidence has to be kept",
            fix="choose another --out",
        ) from None
    path = out / "run.json"
    if path.exists():
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            old = {"run_id": "unreadable"}
        same_server = started is None or old.get("server_started") is None or abs(old["server_started"] - started) <= 2
        if not fresh and old.get("status") == "partial" and old.get("fingerprint") == fingerprint and same_server:
            print(f"resuming run {old['run_id']}", file=sys.stderr)
            return dict(old)
        keep = out / "previous" / str(old.get("run_id"))
        keep.mkdir(parents=True, exist_ok=True)
        for item in out.iterdir():
            if item.name != "previous":
                item.rename(keep / item.name)
        print(f"kept what {out} held under {keep}", file=sys.stderr)
    return {"run_id": uuid.uuid4().hex[:12], "started": time.time(), "fingerprint": fingerprint}


def _harness(
    python: str, out: Path, key: str | None, total: int
) -> tuple[int, dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]:
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


def progress_line(event: dict[str, Any]) -> str:
    """One line: answered, running accuracy, retries, time left."""
    accuracy = event["right"] / event["done"] if event["done"] else 0.0
    left = event.get("left_s")
    return (
        f"gsm8k {event['done']}/{event['total']}  accuracy so far {accuracy:.3f}  retried {event['retried']}  "
        f"failed {event['failed']}  left " + (f"{left:.0f} s" if left is not None else "unknown")
    )


def _outcome(
    policy: Policy,
    out: Path,
    record: dict[str, Any],
    code: int,
    last: dict[str, Any],
    early: dict[str, Any] | None,
    refusal: dict[str, Any] | None,
    total: int,
) -> Outcome:
    data: dict[str, Any] = {"run": record, "out": str(out)}
    done = last.get("done", 0)
    if early is not None:
        what = (
            f"stopped after {early['answers']} answers: {early['right']} right rule out an accuracy of "
            f"{early['floor']:.2f} (a good model is stopped in {early['alpha']:.1%} of runs at most)"
        )
        data["verdict"] = "FAIL"
        return Outcome(
            "fail",
            Exit.CHECK_FAILED,
            f"FAIL early: {what}",
            [
                Finding(
                    "EARLY_FAIL",
                    "error",
                    what,
                    "a broken model need not answer all questions",
                    "suspect weight layout or scales (ATOM_MOE_GU_ITLV, AITER_BF16_FP8_MOE_BOUND), the "
                    "image's commits; the answers are in journal.jsonl",
                )
            ],
            data,
        )
    if code != 0:
        log = (out / "harness.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise Problem(
            "harness_failed",
            what=f"lm-eval ended with {code} after {done} of {total} answers: {log[-1][:200] if log else 'no output'}",
            why="the run is partial; its answers are kept",
            fix=f"read {out}/harness.log; the same command resumes the run",
            exit_code=Exit.CHECK_FAILED,
        )
    findings = []
    requests = record["requests"]
    if refusal:
        findings.append(
            Finding(
                "REQUEST_REFUSED",
                "warn",
                f"the server refuses requests with {refusal['status']}: {refusal['body'][:160]}",
                "each counts as an answer that never came",
                "401: the key; 400: prompt plus max_tokens over the limit, or another model name",
            )
        )
    if record["server_watch"] == "broken":
        findings.append(
            Finding(
                "SERVER_RESTARTED",
                "warn",
                f"{record['refused']} connections were refused within the run",
                "the server went away and came back",
                "the gate will call this run INVALID",
            )
        )
    if requests["retried"] or requests["failed"]:
        findings.append(
            Finding(
                "TRANSPORT",
                "warn",
                f"{requests['retried']} requests sent again, {requests['failed']} without "
                f"an answer; causes: {requests['causes']}",
                "the policy judges these counts",
                "look at the proxy's and the server's log",
            )
        )
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    score = result["results"]["gsm8k"].get(policy.metric)
    data["score"] = score
    return Outcome(
        "warn" if findings else "pass",
        Exit.PASS,
        f"run {record['run_id']}: {total} questions asked, {policy.metric} "
        f"= {score:.4f}; no verdict yet: megamoe gate --policy {policy.name} --result {out} --run {out}/run.json",
        findings,
        data,
    )


def _add_requests(before: dict[str, Any] | None, path: Path) -> dict[str, Any]:
    """Counts of this session added to those of earlier ones."""
    now = (
        json.loads(path.read_text(encoding="utf-8"))
        if path.exists()
        else {"total": 0, "retried": 0, "failed": 0, "refused": 0, "causes": {}}
    )
    if before:
        for key in ("total", "retried", "failed", "refused"):
            now[key] += before.get(key, 0)
        for cause, count in before.get("causes", {}).items():
            now["causes"][cause] = now["causes"].get(cause, 0) + count
    return dict(now)


def _epoch(text: str | None, flag: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        # docker inspect gives nanoseconds, which fromisoformat does not read
        head, dot, tail = text.partition(".")
        if dot:
            digits = "".join(c for c in tail if c.isdigit())[:6]
            zone = tail.lstrip("0123456789")
            text = f"{head}.{digits}{zone}"
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise Problem(
            "time",
            what=f"{flag} {text!r} is neither epoch seconds nor an ISO time",
            why="the age of a result is judged by it",
            fix="pass e.g. 2026-12-02T06:00:00Z",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def _write(path: Path, body: dict[str, Any]) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(body, indent=1), encoding="utf-8")
    temporary.replace(path)
