"""What a finished, stopped or broken run says: one Outcome. Pure but for the files of the run that it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding, Outcome
from megamoe.gate.policy import Policy


def outcome_of(
    policy: Policy,
    out: Path,
    record: dict[str, Any],
    last: dict[str, Any],
    refusal: dict[str, Any] | None,
    total: int,
    policy_source: str,
) -> Outcome:
    data: dict[str, Any] = {"run": record, "out": str(out)}
    done, code, early = last.get("done", 0), record["client_exit"], record["early_fail"]
    if early is not None:
        what = (
            f"stopped after {early['answers']} answers: {early['right']} right rule out an accuracy of "
            f"{early['floor']:.2f} (a good model is stopped in {early['alpha']:.1%} of runs at most)"
        )
        data["verdict"] = "FAIL"
        return Outcome(
            "fail",
            Exit.CHECK_FAILED,
            what,
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
    shown = f"{score:.4f}" if isinstance(score, float) else "not in the result"
    return Outcome(
        "warn" if findings else "pass",
        Exit.PASS,
        f"run {record['run_id']}: {total} questions asked, {policy.metric} "
        f"= {shown}; no verdict yet: megamoe gate --policy {policy_source} --result {out} --run {out}/run.json",
        findings,
        data,
    )


def progress_line(event: dict[str, Any]) -> str:
    """One line: answered, running accuracy, retries, time left."""
    accuracy = event["right"] / event["done"] if event["done"] else 0.0
    left = event.get("left_s")
    return (
        f"gsm8k {event['done']}/{event['total']}  accuracy so far {accuracy:.3f}  retried {event['retried']}  "
        f"failed {event['failed']}  left " + (f"{left:.0f} s" if left is not None else "unknown")
    )
