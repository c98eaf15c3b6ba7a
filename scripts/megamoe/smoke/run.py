"""Order of a smoke: identity, evidence before, the checks, evidence after; then one Outcome."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from megamoe_atom.problem import Exit, Problem
from megamoe_atom.status import RankStatus

from megamoe.envelope import Finding, Outcome
from megamoe.gsm8k.endpoint import api_key, base_url, client, get_json, served_model, server_started
from megamoe.smoke.ask import Check, Target, timed
from megamoe.smoke.checks import CHECKS
from megamoe.smoke.identity import comparable, judge_identity, read_inspection
from megamoe.status.read import judge_evidence, read_status
from megamoe.text_input import load_json

DEFAULT_MAX_BATCHED = 8192  # the recipe's --max-num-batched-tokens
EVIDENCE_PATIENCE_S = 4.0  # evidence files follow the counters within about a second

_FIXES = {
    "fused path": "pass --status-dir (what MEGAMOE_STATUS_DIR names on the node) or --status-command; else read the "
    "engine's log of the rank named",
    "labels and versions": "save `docker inspect CONTAINER` and pass it as --inspect; on a mismatch compare it with "
    "the plan (megamoe verify-deploy)",
    "verified kernels": "run `megamoe kernels verify --json` on the node, in the image that serves",
    "known answer": "read the engine's log; fluent nonsense points at weight layout or scales",
    "streaming": "turn off buffering in the proxy",
    "token limit": "compare --max-model-len with the plan",
    "bad input": "a server that takes bad input as good, or dies of it, must not face clients",
    "abort frees its slot": "pass --status-dir or --status-command: launch counters that stop prove it",
    "same server": "read the engine's log: it crashed or was restarted while it was asked",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What `megamoe smoke` was given. Limits in tokens, time in seconds."""

    url: str
    status_dir: str | None = None
    status_command: str | None = None
    inspect: str | None = None
    deploy: str | None = None
    model: str | None = None
    max_model_len: int | None = None
    max_batched: int | None = None
    timeout_s: float = 60.0
    key_file: str | None = None
    image: str | None = None  # as planned, by digest
    kernels: str | None = None  # file with a saved `megamoe kernels verify`
    selftest_off: bool = False  # the server's own environment says so (smoke runs inside its container)


def run_smoke(ask: Ask) -> Outcome:
    """Asks everything once.

    Raises:
        Problem: no server, no OpenAI server, another model (exits 2, 3, 1); an input file that cannot be used.
    """
    begun = time.monotonic()
    inspection = read_inspection(ask.inspect) if ask.inspect else None
    verified = load_json(ask.kernels) if ask.kernels else None
    image, planned_batched, planned_len = _planned(ask.deploy)
    if ask.image is not None:
        image = comparable(ask.image, inspection)
    http = client(base_url(ask.url), api_key(ask.key_file), ask.timeout_s)
    name, entry = served_model(http, ask.model)
    told = entry.get("max_model_len")
    limit = ask.max_model_len or (told if isinstance(told, int) and told > 0 else None) or planned_len
    checks = [Check("identity", "pass", f"serves {name}" + (f", max_model_len {limit}" if limit else ""))]
    checks.append(timed("health", lambda: _health(http)))
    started = server_started(http)
    watched = bool(ask.status_dir or ask.status_command)
    before, no_evidence = _evidence(ask) if watched else ([], None)
    labels, seen, facts = _identity(before, inspection, image)
    checks.append(Check("labels and versions", labels, seen))
    if ask.kernels:
        state, told_of, facts["kernels"] = _kernels(verified, ask.kernels, before)
        checks.append(Check("verified kernels", state, told_of))

    def launches() -> int:
        return sum(e.launches for e in read_status(ask.status_dir, ask.status_command))

    batched = ask.max_batched or planned_batched or (before[0].mtpr if before else DEFAULT_MAX_BATCHED)
    target = Target(http, name, limit, batched, launches if before else None)
    for label, check in CHECKS:
        checks.append(_one(label, check, target, checks))
        print(f"smoke {label}: {checks[-1].status} ({checks[-1].seconds:.1f} s)", file=sys.stderr, flush=True)
    after: list[RankStatus] = []
    if no_evidence is not None:
        checks.append(Check("fused path", "fail", no_evidence))
    elif watched:
        evidence, after = _fused(before, ask)
        checks.append(evidence)
    else:
        checks.append(Check("fused path", "not_run", "no evidence source was given (--status-dir or --status-command)"))
    checks.append(timed("same server", lambda: _same_server(http, started)))
    facts["server_started"] = started
    return _outcome(checks, after, name, facts, time.monotonic() - begun)


def _one(label: str, check: Callable[[Target], tuple[str, str]], target: Target, earlier: list[Check]) -> Check:
    lost = next((c for c in earlier if c.unreachable), None)
    if lost is not None:
        return Check(label, "not_run", f"the server did not answer any more in {lost.name!r}")
    try:
        return timed(label, lambda: check(target))
    except Problem as problem:  # evidence that went away while a check read it
        return Check(label, "fail", problem.reasons[0].what)


def _planned(deploy: str | None) -> tuple[str | None, int | None, int | None]:
    """Image, max_num_batched_tokens and max_model_len of the deploy file, where one is given."""
    if deploy is None:
        return None, None, None
    from megamoe.deploy.load import require_deploy

    plan = require_deploy(deploy)
    return plan.image, plan.args.max_num_batched_tokens, plan.args.max_model_len


def _health(http: Any) -> tuple[str, str]:
    try:
        get_json(http, "/health")
    except Problem as problem:
        return "warn", problem.reasons[0].what
    return "pass", "/health answers"


def _identity(
    evidence: list[RankStatus], inspection: dict[str, Any] | None, image: str | None
) -> tuple[str, str, dict[str, Any]]:
    from megamoe.version.identity import LOCK_PATH

    try:
        return judge_identity(evidence, inspection, image, LOCK_PATH)
    except Problem as problem:  # a stack lock that cannot be read must not hide what the other checks see
        return "fail", problem.reasons[0].what, {}


def _kernels(verified: Any, name: str, evidence: list[RankStatus]) -> tuple[str, str, dict[str, Any]]:
    """Whether a saved `megamoe kernels verify` passed, on the kernels that this server's ranks loaded."""
    if not evidence:
        return "not_run", "without the server's evidence nobody knows which kernels it runs", {}
    from megamoe.kernels.verify_evidence import judge_saved

    try:
        against, short = judge_saved(verified, name, frozenset(evidence[0].kernel_edits))
    except Problem as problem:  # another file must not hide what the other checks see
        return "fail", problem.reasons[0].what, {}
    if against:
        return "fail", "; ".join(f.what for f in against), short
    return "pass", f"{short['bit_equal_cases']} of {short['cases']} cases bit-equal on {short['ranks']} ranks", short


def _same_server(http: Any, started: float | None) -> tuple[str, str]:
    ended = server_started(http)
    if started is None or ended is None:
        return "pass", "it answered throughout; it does not tell when it was started (no /metrics of its process)"
    if abs(ended - started) > 2:
        return "fail", f"its start time was {started:.0f} before and is {ended:.0f} now: it was restarted"
    return "pass", f"started at {started:.0f} before and after"


def _evidence(ask: Ask) -> tuple[list[RankStatus], str | None]:
    """Evidence before the checks, or why there is none: that alone must not hide what the other checks see."""
    try:
        return read_status(ask.status_dir, ask.status_command), None
    except Problem as problem:
        return [], problem.reasons[0].what


def _fused(before: list[RankStatus], ask: Ask) -> tuple[Check, list[RankStatus]]:
    """Complete evidence, a passed self-test, and counters of every rank and layer that grew since `before`."""
    begun = time.monotonic()
    while True:
        try:
            after = read_status(ask.status_dir, ask.status_command)
        except Problem as problem:
            return Check("fused path", "fail", problem.reasons[0].what), []
        against = judge_evidence(after) + _standstill(before, after)
        switched_off = ask.selftest_off and all("self-test is 'off'" in text for text in against)
        if not against or switched_off or time.monotonic() - begun > EVIDENCE_PATIENCE_S:
            break
        time.sleep(0.5)
    grown = sum(e.launches for e in after) - sum(e.launches for e in before)
    detail = (
        "; ".join(against[:3]) + (f" (and {len(against) - 3} more)" if len(against) > 3 else "")
        if against
        else f"ran on all {len(after)} ranks and {len(after[0].layers_converted)} layers, self-test passed; every "
        f"counter grew, {grown} launches in all"
    )
    if against and switched_off:
        return Check("fused path", "not_run", f"MEGAMOE_SELFTEST=off: {detail}"), after
    return Check("fused path", "fail" if against else "pass", detail, round(time.monotonic() - begun, 2)), after


def _standstill(before: list[RankStatus], after: list[RankStatus]) -> list[str]:
    """Ranks and layers whose launch counters did not grow, and ranks that are not the processes they were."""
    earlier = {e.rank: e for e in before}
    against = []
    changed = [e.rank for e in after if e.rank in earlier and earlier[e.rank].pid != e.pid]
    if changed:
        against.append(f"ranks {changed} were restarted during the smoke")
    idle = [e.rank for e in after if e.rank in earlier and e.launches <= earlier[e.rank].launches]
    if idle:
        against.append(f"the launch counters of ranks {idle} did not grow during the smoke")
    for e in after:
        if e.rank not in earlier or e.rank in idle or e.rank in changed:
            continue
        was = earlier[e.rank].launches_per_layer
        still = [n for n in e.layers_converted if e.launches_per_layer.get(n, 0) <= was.get(n, 0)]
        if still:
            against.append(f"rank {e.rank}: {len(still)} layers were not run during the smoke: {', '.join(still[:5])}")
    return against


_WHY = {
    "fused path": "without evidence the fused path is not called active",
    "labels and versions": "any image may answer on this port",
    "verified kernels": "this node's GPUs have not been seen to compute what these kernels compute",
}


def _outcome(
    checks: list[Check], evidence: list[RankStatus], model: str, facts: dict[str, Any], seconds: float
) -> Outcome:
    findings = []
    for check in checks:
        if check.status == "pass":
            continue
        finding = Finding(
            "SMOKE_" + check.name.upper().replace(" ", "_"),
            "error" if check.status == "fail" else "warn",
            f"{check.name}: {check.detail}",
            _WHY.get(
                check.name, "could not run is not passed" if check.status == "not_run" else "a client would meet this"
            ),
            _FIXES.get(check.name, "read the engine's log around this time"),
        )
        # Nobody gave a source for it: said, but no louder than the missing proof of the fused path.
        quiet = check.status == "not_run" and check.name == "labels and versions"
        findings.append(replace(finding, severity="info") if quiet else finding)
    failed = [c for c in checks if c.status == "fail"]
    rows = "\n".join(f"{c.status:<8} {c.name:<22} {c.seconds:>6.2f} s  {c.detail}" for c in checks)
    data = {
        "model": model,
        "seconds": round(seconds, 2),
        **facts,
        "fused_path_active": any(c.name == "fused path" and c.status == "pass" for c in checks) and not failed,
        "checks": [{"name": c.name, "status": c.status, "detail": c.detail, "seconds": c.seconds} for c in checks],
        "evidence": [e.as_dict() for e in evidence],
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
    warned = any(f.severity == "warn" for f in findings)
    return Outcome(
        "warn" if warned else "pass", Exit.PASS, f"{model} answers; {proven}; {seconds:.1f} s", findings, data, rows
    )
