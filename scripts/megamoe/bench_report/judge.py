"""Labels benchmark figures: what may be shown, what is invalid, what may be published. Pure.

Input keys are those of vLLM-style benchmark output (num_prompts, completed, max_concurrency, mean_ttft_ms, ...), and
optionally ranks, max_num_seqs, image_digest, args, seed and cache_hit_rate.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from megamoe_atom.problem import Exit

from megamoe.envelope import Finding, Outcome

_LATENCY = ("ttft", "itl", "tpot", "e2el")
_KNOWN_RATES = ("total_token_throughput", "output_throughput", "request_throughput")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Switches that force an even routing (ROCm/ATOM's "fake eplb", forced uniform routing elsewhere).
_BALANCED = re.compile(
    r"fake[_-]?eplb|(?:force|fake|uniform)[_-]?(?:load[_-]?)?(?:balanc\w*|routing|rout\w*)", re.IGNORECASE
)
DEFAULT_RANKS = 8  # one node of the recipe: EP8, DP attention over 8 ranks


def judge_bench(bench: dict[str, Any], gate: dict[str, Any] | None, ranks: int | None) -> Outcome:
    """Figures with labels; `diagnostic-only` unless a gate PASS of the same digest and arguments is at hand."""
    findings: list[Finding] = []
    figures: dict[str, dict[str, Any]] = {}
    world = ranks or _positive_int(bench.get("ranks")) or DEFAULT_RANKS

    def invalid(code: str, what: str, why: str, fix: str) -> None:
        findings.append(Finding(code, "warn", what, why, fix))

    dead_families = set()
    for family in _LATENCY:
        members = {k: v for k, v in bench.items() if f"_{family}_" in k and k.endswith("_ms")}
        numbers = {k: _number(v) for k, v in members.items()}
        wrong = {k: members[k] for k, v in numbers.items() if v is None or v <= 0}
        # A zero standard deviation is possible; a latency of zero is not.
        wrong = {k: v for k, v in wrong.items() if not (k.startswith("std") and numbers[k] == 0)}
        p99 = numbers.get(f"p99_{family}_ms")
        reason = _why_wrong(wrong) if wrong else None
        p50 = numbers.get(f"median_{family}_ms") or numbers.get(f"p50_{family}_ms")
        if not wrong and p99 is not None and p50 is not None and p99 < p50:
            reason = f"p99 {p99} is below the median {p50}"
        for key in members:
            figures[key] = {"label": "invalid", "why": reason} if reason else {"label": "shown", "value": numbers[key]}
        if reason:
            dead_families.add(family)
            invalid(
                f"LATENCY_INVALID_{family.upper()}",
                f"{family.upper()} is invalid: {reason} ({', '.join(sorted(members))})",
                "the client did not record it (no streaming, or no usage in the stream); it is not shown as a number",
                "measure with a streaming backend, then report again",
            )
    for key in _KNOWN_RATES:
        if key in bench:
            value = _number(bench[key])
            good = value is not None and value > 0
            figures[key] = (
                {"label": "shown", "value": value} if good else {"label": "invalid", "why": f"{bench[key]!r}"}
            )
            if not good:
                invalid(
                    "THROUGHPUT_INVALID", f"{key} is {bench[key]!r}", "nothing was measured", "run the benchmark again"
                )
    fatal = _completeness(bench, findings)
    contradict = _impossible(bench, dead_families, findings)
    concurrency = _positive_int(bench.get("max_concurrency"))
    data: dict[str, Any] = {"figures": figures, "ranks": world}
    text = []
    if concurrency:
        asked = concurrency / world
        cap = _positive_int(bench.get("max_num_seqs")) or _positive_int(
            (bench.get("args") or {}).get("max_num_seqs") if isinstance(bench.get("args"), dict) else None
        )
        effective = min(asked, cap) if cap else asked
        prompts = _positive_int(bench.get("num_prompts"))
        if prompts and prompts < concurrency:
            effective = min(effective, prompts / world)
            invalid(
                "CONCURRENCY_NOT_REACHED",
                f"{prompts} prompts cannot fill a concurrency of {concurrency}",
                "the figures are of a smaller batch than the one named",
                "send several times as many prompts as the concurrency",
            )
        data["effective_concurrency_per_rank"] = effective
        text.append(f"effective concurrency per rank: {effective:g} ({concurrency} / {world})")
        if cap and asked > cap:
            invalid(
                "CONCURRENCY_CAPPED",
                f"concurrency {concurrency} is {asked:g} per rank, the server takes {cap:g}",
                "the rest waits in the queue, so latency is queueing",
                "report the effective batch beside it",
            )
    else:
        invalid(
            "CONCURRENCY_UNKNOWN",
            "max_concurrency is not given",
            "throughput means nothing without it",
            "run the benchmark with a fixed concurrency",
        )
    approved, why_not = _approved(bench, gate)
    if not approved:
        findings.append(
            Finding(
                "DIAGNOSTIC_ONLY",
                "warn",
                f"diagnostic only: {why_not}",
                "builds that scored 0 on gsm8k have shown full speed; no ranking without an accuracy proof",
                "run smoke and gsm8k on this digest and these arguments, then pass the gate's JSON as --gate",
            )
        )
    balanced = _BALANCED.search(json.dumps([bench.get(k) for k in ("args", "env", "server_args", "command")]))
    if balanced:
        approved = False
        invalid(
            "ROUTING_BALANCED",
            f"the launch names {balanced[0]!r}: routing is balanced by construction",
            "real text does not route evenly, so these figures are not those of the service",
            "measure without it",
        )
    args_known = bench.get("args") is not None
    if approved and not args_known:
        invalid(
            "ARGS_UNKNOWN",
            "neither the benchmark nor the gate result names the engine's arguments",
            "a PASS under other arguments says nothing about this launch, so the figures are not ranked",
            "record args with both (megamoe gsm8k --deploy does)",
        )
    data["label"] = "invalid" if fatal else "normal" if approved else "diagnostic-only"
    data["may_be_ranked"] = approved and args_known and not fatal and not dead_families and not contradict
    for key, figure in figures.items():
        text.append(
            f"{key:<26} "
            + (f"{figure['value']:g}" if figure["label"] == "shown" else f"invalid ({figure['why']})")
            + ("" if approved or figure["label"] != "shown" else "  [diagnostic only]")
        )
    if fatal:
        return Outcome(
            "invalid",
            Exit.NO_EVIDENCE,
            "the benchmark did not do what it was asked: no figure counts",
            findings,
            data,
            "\n".join(text),
        )
    warned = any(f.severity == "warn" for f in findings)
    return Outcome(
        "warn" if warned else "pass",
        Exit.PASS,
        "normal report" if data["label"] == "normal" else "figures for diagnosis only, not for publication",
        findings,
        data,
        "\n".join(text),
    )


def _completeness(bench: dict[str, Any], findings: list[Finding]) -> bool:
    """Did it complete what it was asked? False means the figures stand."""
    asked, done = _number(bench.get("num_prompts")), _number(bench.get("completed"))
    failed = _number(bench.get("failed")) or 0
    unread = [f"{k} is {bench[k]!r}" for k in ("num_prompts", "completed") if k in bench and _number(bench[k]) is None]
    if unread:
        findings.append(
            Finding(
                "COUNT_NOT_A_NUMBER",
                "error",
                ", ".join(unread),
                "whether every request was answered cannot be said",
                "give the benchmark's own output file",
            )
        )
        return True
    if asked is None or done is None or asked <= 0 or asked != done or failed > 0:
        also = f", {failed:g} failed" if failed else ""
        findings.append(
            Finding(
                "INCOMPLETE",
                "error",
                f"{bench.get('completed')} of {bench.get('num_prompts')} requests completed{also}",
                "failed requests mixed into the figures make them faster or slower than the service",
                "find the failures, then measure again",
            )
        )
        return True
    out, length = _number(bench.get("total_output_tokens")), _number(bench.get("output_len"))
    if out is not None and length and abs(out - done * length) > 0.02 * done * length:
        findings.append(
            Finding(
                "OUTPUT_SHORT",
                "error",
                f"{out:.0f} output tokens, {done:.0f} requests of {length:.0f} make {done * length:.0f}",
                "answers that end early make throughput look better or worse",
                "run with ignore_eos, or report the real lengths",
            )
        )
        return True
    hits = _number(bench.get("cache_hit_rate"))
    if hits is not None and hits > 0.01:
        findings.append(
            Finding(
                "PREFIX_CACHE_WARM",
                "error",
                f"prefix cache hits: {hits:.1%}",
                "a warm cache answers prompts that were not computed",
                "use a new seed or flush the cache",
            )
        )
        return True
    return False


def _impossible(bench: dict[str, Any], dead: set[str], findings: list[Finding]) -> bool:
    """More tokens per second than the named concurrency can make at the named time per token? They contradict."""
    concurrency, tpot = _positive_int(bench.get("max_concurrency")), _number(bench.get("mean_tpot_ms"))
    if not concurrency or not tpot or tpot <= 0 or "tpot" in dead:
        return False
    most = concurrency * 1000 / tpot
    length, prompt = _number(bench.get("output_len")), _number(bench.get("input_len"))
    total = most * (length + prompt) / length if length and prompt and length > 0 and prompt >= 0 else None
    for key, bound in (("output_throughput", most), ("total_token_throughput", total)):
        rate = _number(bench.get(key))
        # A tenth for rounding: the mean over requests is not exactly the mean over time.
        if bound is not None and rate is not None and rate > 1.1 * bound:
            findings.append(
                Finding(
                    "FIGURES_CONTRADICT",
                    "warn",
                    f"{key} is {rate:g} tokens/s; {concurrency} requests at {tpot:g} ms per token make "
                    f"{bound:.0f} at most",
                    "one of the figures was not measured in this run",
                    "measure again, with the benchmark's own clock for all of them",
                )
            )
            return True
    return False


def _why_wrong(wrong: dict[str, Any]) -> str:
    """What is wrong with a family's members: their values, none of which a clock could have given."""
    if all(v == 0 for v in wrong.values()):
        return "a latency of exactly zero was not measured"
    return "not a positive number of milliseconds: " + ", ".join(f"{k}={v!r}" for k, v in sorted(wrong.items()))


def _digest(value: Any) -> Any:
    """The digest alone of NAME@sha256:HEX, so that two spellings of one image are equal."""
    found = _DIGEST.findall(value) if isinstance(value, str) else []
    return found[-1] if found else value


def _approved(bench: dict[str, Any], gate: dict[str, Any] | None) -> tuple[bool, str]:
    """A gate PASS of the same digest and arguments? What only one of them names is unknown, not fine."""
    if gate is None:
        return False, "no gate result was given for this digest"
    body = gate.get("data") if isinstance(gate.get("data"), dict) else gate
    verdict = (body or {}).get("verdict", gate.get("verdict"))
    if verdict != "PASS":
        return False, f"the gate's verdict is {verdict!r}"
    for key in ("image_digest", "args"):
        ours, theirs = _digest(bench.get(key)), _digest((body or {}).get(key, gate.get(key)))
        if ours is None and theirs is None and key == "args":
            continue
        if ours is None or theirs is None:
            return False, f"{key} is not named by {'the benchmark' if ours is None else 'the gate result'}"
        if ours != theirs:
            return False, f"{key} differs: benchmark {ours!r}, gate {theirs!r}"
    return True, ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _positive_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
