"""Order of a smoke: identity, evidence before, the checks, evidence after; then one Outcome."""

from __future__ import annotations

import sys
import time
from typing import Any

from megamoe_atom.problem import Exit, Problem
from megamoe_atom.status import RankStatus

from megamoe.envelope import Finding, Outcome
from megamoe.gsm8k.endpoint import api_key, base_url, client, get_json, served_model
from megamoe.smoke.checks import CHECKS, Check, Target, timed
from megamoe.status.read import judge_evidence, read_status

_FIXES = {
    "fused path": "pass --status-dir (what MEGAMOE_STATUS_DIR names on the node) or --status-command; else read the "
    "engine's log of the rank named",
    "known answer": "read the engine's log; fluent nonsense points at weight layout or scales",
    "streaming": "turn off buffering in the proxy",
    "token limit": "compare --max-model-len with the plan",
    "bad input": "a server that takes bad input as good, or dies of it, must not face clients",
}


def run_smoke(
    url: str,
    status_dir: str | None,
    status_command: str | None,
    model: str | None,
    max_model_len: int | None,
    max_batched: int,
    timeout_s: float,
    key_file: str | None,
) -> Outcome:
    begun = time.monotonic()
    http = client(base_url(url), api_key(key_file), timeout_s)
    name, entry = served_model(http, model)
    limit = max_model_len or (entry.get("max_model_len") if isinstance(entry.get("max_model_len"), int) else None)
    checks = [Check("identity", "pass", f"serves {name}" + (f", max_model_len {limit}" if limit else ""))]
    checks.append(timed("health", lambda: _health(http)))
    watched = bool(status_dir or status_command)
    before = read_status(status_dir, status_command) if watched else []
    target = Target(http, name, limit, max_batched)
    for label, check in CHECKS:
        checks.append(timed(label, lambda check=check: check(target)))  # type: ignore[misc] # bound at once
        print(f"smoke {label}: {checks[-1].status} ({checks[-1].seconds:.1f} s)", file=sys.stderr, flush=True)
    evidence, after = (
        _fused(before, status_dir, status_command)
        if watched
        else (Check("fused path", "not_run", "no evidence source was given (--status-dir or --status-command)"), [])
    )
    checks.append(evidence)
    return _outcome(checks, after, name, time.monotonic() - begun)


def _health(http: Any) -> tuple[str, str]:
    try:
        get_json(http, "/health")
    except Problem as problem:
        return "warn", problem.reasons[0].what
    return "pass", "/health answers"


def _fused(before: list[RankStatus], folder: str | None, command: str | None) -> tuple[Check, list[RankStatus]]:
    """Evidence is written about once a second, so the last files are awaited for a few seconds."""
    begun = time.monotonic()
    earlier = {e.rank: (e.launches, e.pid) for e in before}
    while True:
        after = read_status(folder, command)
        against = judge_evidence(after)
        idle = [e.rank for e in after if e.launches <= earlier.get(e.rank, (0, 0))[0]]
        if idle:
            against.append(f"the launch counters of ranks {idle} did not grow during the smoke")
        changed = [e.rank for e in after if e.rank in earlier and earlier[e.rank][1] != e.pid]
        if changed:
            against.append(f"ranks {changed} were restarted during the smoke")
        if not against or time.monotonic() - begun > 4:
            break
        time.sleep(0.5)
    detail = (
        "; ".join(against[:3])
        if against
        else (
            f"ran on all {len(after)} ranks, self-test passed, launches grew by "
            f"{sum(e.launches - earlier.get(e.rank, (0, 0))[0] for e in after)}"
        )
    )
    return Check("fused path", "fail" if against else "pass", detail, round(time.monotonic() - begun, 2)), after


def _outcome(checks: list[Check], evidence: list[RankStatus], model: str, seconds: float) -> Outcome:
    findings = []
    for check in checks:
        if check.status == "pass":
            continue
        code = "SMOKE_" + check.name.upper().replace(" ", "_")
        severity = "error" if check.status == "fail" else "warn"
        why = (
            "without evidence the fused path is not called active"
            if check.name == "fused path"
            else "could not run is not passed"
            if check.status == "not_run"
            else "a client would meet this too"
        )
        findings.append(
            Finding(
                code,
                severity,
                f"{check.name}: {check.detail}",
                why,  # type: ignore[arg-type]
                _FIXES.get(check.name, "read the engine's log around this time"),
            )
        )
    failed = [c for c in checks if c.status == "fail"]
    rows = "\n".join(f"{c.status:<8} {c.name:<22} {c.seconds:>6.2f} s  {c.detail}" for c in checks)
    data = {
        "model": model,
        "seconds": round(seconds, 2),
        "evidence": [e.as_dict() for e in evidence],
        "fused_path_active": any(c.name == "fused path" and c.status == "pass" for c in checks),
        "checks": [{"name": c.name, "status": c.status, "detail": c.detail, "seconds": c.seconds} for c in checks],
    }
    if failed:
        only_evidence = [c.name for c in failed] == ["fused path"]
        return Outcome(
            "invalid" if only_evidence else "fail",
            Exit.NO_EVIDENCE if only_evidence else Exit.CHECK_FAILED,
            f"{len(failed)} of {len(checks)} checks failed, first {failed[0].name}: {failed[0].detail}",
            findings,
            data,
            rows,
        )
    proven = "the fused path ran" if data["fused_path_active"] else "the fused path is not proven"
    return Outcome(
        "warn" if findings else "pass", Exit.PASS, f"{model} answers; {proven}; {seconds:.1f} s", findings, data, rows
    )
