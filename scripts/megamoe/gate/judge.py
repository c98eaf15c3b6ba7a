"""The verdict. Pure: policy and evidence in, Outcome out.

Order matters: what makes the run no evidence (INVALID) is looked at first and alone, because a score computed from
empty, truncated, foreign or stale answers must not be shown as if it were one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from megamoe_atom.problem import Exit, Reason

from megamoe.envelope import Finding, Outcome
from megamoe.gate import stats
from megamoe.gate.evidence import Evidence
from megamoe.gate.faults import AGAIN, answer_faults, number, protocol_faults, read_score, run_faults, sample_faults
from megamoe.gate.paired import baseline_facts, judge_paired, second_stage
from megamoe.gate.policy import Policy
from megamoe.gate.protocol import protocol_of, protocol_text
from megamoe.gate.samples import SampleFacts, summarise
from megamoe.gsm8k.sequential import EarlyFail


def judge(
    policy: Policy,
    evidence: Evidence,
    baseline: Evidence | None = None,
    further: Sequence[tuple[Evidence, Evidence]] = (),
) -> Outcome:
    """PASS, FAIL, INCONCLUSIVE or INVALID (data.verdict), with the numbers it rests on.

    further: (this deployment, baseline) on further questions, the second stage of the paired comparison.
    """
    stopped = (evidence.run or {}).get("early_fail")
    if isinstance(stopped, dict) and (evidence.run or {}).get("status") == "early_fail":
        return _stopped_early(policy, evidence, stopped)
    faults = list(evidence.faults)
    notes: list[Finding] = []
    data: dict[str, Any] = {
        "verdict": "INVALID",
        "policy": _policy_data(policy),
        "result_file": str(evidence.result_path) if evidence.result_path else None,
    }
    facts: SampleFacts | None = None
    n: int | None = None
    score: float | None = None
    if evidence.result:
        protocol = protocol_of(evidence.result, policy.task)
        data["protocol"] = protocol
        score, n = read_score(policy, evidence.result, protocol, faults)
        faults += protocol_faults(policy, protocol)
    if evidence.samples is not None:
        facts, odd = summarise(evidence.samples, policy.filter_name, policy.metric_name)
        faults += odd
        if evidence.result:
            faults += sample_faults(policy, facts, n, score, odd)
        if facts.n:
            faults += answer_faults(policy, facts, data)
    if evidence.run is not None:
        faults += run_faults(policy, evidence, data, notes)
    if not evidence.result and not faults:
        faults.append(Reason("RESULT_MISSING", "there is no result to judge", "no evidence is no approval", AGAIN))
    paired_facts = baseline_facts(policy, evidence, baseline, facts, faults, data)
    second = second_stage(policy, evidence, facts, further, faults, data)
    if faults or score is None or n is None:
        return _invalid(faults, notes, data)

    right = round(score * n)
    compared = paired_facts is not None and facts is not None
    verdicts = [
        _judge_floor(policy, score, right, n, data, notes),
        _judge_reference(policy, right, n, compared, data, notes),
    ]
    if paired_facts is not None and facts is not None:
        verdicts.append(judge_paired(policy, facts, paired_facts, data, notes, second))
    _filter_gap(policy, evidence.result, data, notes)
    if facts is None:
        notes.append(
            Finding(
                "SAMPLES_NOT_GIVEN",
                "info",
                "no samples were given, so empty answers were not counted",
                "empty answers look like low accuracy",
                "give --samples to have them counted",
            )
        )
    elif facts.garbage:
        notes.append(
            Finding(
                "GARBAGE_ANSWERS",
                "warn",
                f"{facts.garbage} answers are one repeated character",
                "a broken kernel answers like this",
                "look at those samples",
            )
        )
    return _decide(policy, verdicts, score, right, n, facts, data, notes)


def _stopped_early(policy: Policy, evidence: Evidence, stopped: dict[str, Any]) -> Outcome:
    """The sequential test of `megamoe gsm8k` stopped the run; no full result is needed, but the run must be sound.

    The evidence depends on the counts alone, so it is computed again here, under this policy's own floor.
    """
    run = evidence.run or {}
    data: dict[str, Any] = {"verdict": "INVALID", "policy": _policy_data(policy), "early_fail": stopped}
    notes: list[Finding] = []
    # No result file belongs to a stopped run, and the client says so by its exit code.
    sound = Evidence(run={**run, "client_exit": 0, "status": "complete"})
    faults = run_faults(policy, sound, data, notes)
    shots = run.get("num_fewshot")
    if shots is not None and shots != policy.num_fewshot:
        faults.append(
            Reason(
                "PROTOCOL_SHOTS",
                f"protocol differs from the policy: num_fewshot is {shots}, the policy says {policy.num_fewshot}",
                "scores of different protocols are different quantities under one name",
                f"run the evaluation with num_fewshot={policy.num_fewshot}",
            )
        )
    answers, right = stopped.get("answers"), stopped.get("right")
    counted = all(isinstance(x, int) and not isinstance(x, bool) for x in (answers, right))
    if not counted or not 0 <= int(right or 0) <= int(answers or 0):
        faults.append(
            Reason(
                "EARLY_FAIL_COUNTS",
                f"the run record counts {right!r} right of {answers!r} answers",
                "the early stop rests on these counts",
                AGAIN,
            )
        )
    if faults:
        return _invalid(faults, notes, data)
    test = EarlyFail(policy.stop_floor, policy.sequential_alpha)
    test.right, test.wrong = int(right or 0), int(answers or 0) - int(right or 0)
    if test.log_evidence < -math.log(policy.sequential_alpha):
        reason = Reason(
            "EARLY_FAIL_NOT_OF_THIS_POLICY",
            f"the run was stopped after {answers} answers, {right} right; under this policy's floor of "
            f"{policy.stop_floor} that rules nothing out",
            "it was stopped by another policy's floor, so it is only an unfinished run here",
            f"run it with --policy {policy.name}",
        )
        return _invalid([reason], notes, data)
    what = (
        f"stopped after {answers} answers, {right} of them right: an accuracy of {policy.stop_floor} is ruled out "
        f"(a good model is stopped in {policy.sequential_alpha:.1%} of runs at most)"
    )
    finding = Finding(
        "EARLY_FAIL",
        "error",
        what,
        "a broken model need not answer all questions",
        "suspect weight layout or scales; the answers are in the run folder's journal.jsonl",
    )
    return Outcome("fail", Exit.CHECK_FAILED, what, [finding, *notes], {**data, "verdict": "FAIL"})


def _policy_data(policy: Policy) -> dict[str, Any]:
    return {k: v for k, v in asdict(policy).items() if v not in (None, "")}


def _invalid(faults: list[Reason], notes: list[Finding], data: dict[str, Any]) -> Outcome:
    data["verdict"] = "INVALID"
    first = faults[0]
    summary = f"no evidence either way: {first.what}"
    if len(faults) > 1:
        summary += f" (and {len(faults) - 1} more)"
    keep = [f for f in notes if f.severity == "warn"]
    return Outcome("invalid", Exit.NO_EVIDENCE, summary, [Finding.from_reason(r) for r in faults] + keep, data)


def _judge_floor(policy: Policy, score: float, right: int, n: int, data: dict[str, Any], notes: list[Finding]) -> str:
    ci = stats.wilson(right, n)
    stderr = math.sqrt(max(score * (1 - score), 1 / n) / n)
    p = stats.p_below(right, n, policy.floor)
    data["score"], data["n"], data["right"] = score, n, right
    data["wilson_95"] = [round(ci.low, 6), round(ci.high, 6)]
    data["floor"] = {
        "floor": policy.floor,
        "met": score >= policy.floor,
        "p_below": round(p, 6),
        "margin_in_stderr": round((score - policy.floor) / stderr, 2),
    }
    if score >= policy.floor:
        if ci.low < policy.floor:
            notes.append(
                Finding(
                    "FLOOR_CLOSE",
                    "warn",
                    f"the score {score:.4f} reaches the floor {policy.floor:.4f}, but "
                    f"its 95 % interval [{ci.low:.4f}, {ci.high:.4f}] reaches below it",
                    "a second run of the same server could fall below",
                    "watch it, or compare with a baseline",
                )
            )
        return "PASS"
    hint = (
        "a score this low with HTTP 200 is usually a weight layout or scale fault: compare ATOM_MOE_GU_ITLV, "
        "AITER_BF16_FP8_MOE_BOUND and the image's commits with the plan"
        if score < 0.2
        else "a score of 0.3 to 0.6 with few unreadable answers points at scaling or a shared-expert fault"
        if 0.3 <= score <= 0.6
        else "run the same evaluation on a known-good backend as a control before blaming the deployment"
    )
    notes.append(
        Finding(
            "BELOW_FLOOR",
            "error",
            f"{policy.metric} = {score:.4f} is below the floor {policy.floor:.4f} "
            f"({(score - policy.floor) / stderr:.1f} standard errors, one-sided p = {p:.2g})",
            "the floor is what nothing may serve below",
            hint,
        )
    )
    return "FAIL"


def _judge_reference(
    policy: Policy, right: int, n: int, compared: bool, data: dict[str, Any], notes: list[Finding]
) -> str:
    """`compared`: a baseline is compared question by question, which sees more than a reference score would."""
    if policy.reference is None and compared:
        data["reference"] = {"status": "not_run", "why": "the policy has no reference: a baseline is compared"}
        return "PASS"
    if policy.reference is None:
        data["reference"] = {"status": "not_run", "why": "the policy has no reference: floor only"}
        notes.append(
            Finding(
                "NO_REFERENCE",
                "info",
                "the policy has no reference score: only the floor was judged",
                "a loss that stays above the floor is not seen",
                "compare with a baseline (--baseline)",
            )
        )
        return "PASS"
    reference_n = policy.reference_n or policy.n_required
    p = stats.p_below_measured(right, n, policy.reference, reference_n)
    score = right / n
    data["reference"] = {
        "reference": policy.reference,
        "n": reference_n,
        "note": policy.reference_note,
        "difference": round(score - policy.reference, 6),
        "p_no_worse": round(p, 6),
    }
    if p < policy.reference_alpha:
        notes.append(
            Finding(
                "BELOW_REFERENCE",
                "error",
                f"{score:.4f} is below the reference {policy.reference:.4f} by more "
                f"than chance allows (one-sided p = {p:.2g}, limit {policy.reference_alpha})",
                "known faults score above the floor and below the reference: a missing SwiGLU clamp gave 0.90 "
                "to 0.91 where 0.94 was right",
                "look for what changed since the reference: backend, KV dtype, "
                "environment, commits; run a control on the standard path",
            )
        )
        return "FAIL"
    if p < 0.05:
        notes.append(
            Finding(
                "REFERENCE_CLOSE",
                "warn",
                f"{score:.4f} against the reference {policy.reference:.4f}: one-sided p = {p:.2g}",
                "one good run in twenty looks like this, and so does a small loss",
                "compare with a stored baseline (--baseline)",
            )
        )
    return "PASS"


def _filter_gap(policy: Policy, result: dict[str, Any], data: dict[str, Any], notes: list[Finding]) -> None:
    task = result["results"][policy.task]
    strict, flexible = (number(task.get(f"{policy.metric_name},{f}")) for f in ("strict-match", "flexible-extract"))
    if strict is None or flexible is None or abs(strict - flexible) <= policy.max_filter_gap:
        return
    data["filter_gap"] = {"strict-match": strict, "flexible-extract": flexible}
    notes.append(
        Finding(
            "FILTERS_DISAGREE",
            "warn",
            f"strict-match {strict:.4f} and flexible-extract {flexible:.4f} disagree by "
            f"{100 * abs(strict - flexible):.1f} points",
            "the answers are not in the form that the few-shot examples "
            "show (a chat template, another stop string), or one filter picks up the wrong number; the policy "
            f"judges {policy.filter_name}",
            "look at some samples before trusting either number",
        )
    )


def _compared_with(policy: Policy, paired: dict[str, Any]) -> str:
    """What the score was compared with besides the floor, as words of the summary."""
    text = f", reference {policy.reference:.4f}" if policy.reference is not None else ""
    if "lost" in paired:  # not where no baseline was given
        seen = paired.get("second_look", paired)
        text += f", {seen['lost']} lost and {seen['gained']} gained against the baseline"
    return text or ", no reference"


def _decide(
    policy: Policy,
    verdicts: list[str],
    score: float,
    right: int,
    n: int,
    facts: SampleFacts | None,
    data: dict[str, Any],
    notes: list[Finding],
) -> Outcome:
    verdict = next((v for v in ("FAIL", "INCONCLUSIVE") if v in verdicts), "PASS")
    data["verdict"] = verdict
    low, high = data["wilson_95"]
    text = (
        f"{policy.task} {policy.filter_name} {score:.4f} ({right}/{n}, 95 % Wilson [{low:.4f}, {high:.4f}]), floor "
        f"{policy.floor:.4f}"
        + _compared_with(policy, data["paired"])
        + f"; {protocol_text(data['protocol'])}"
    )
    if facts is not None:
        text += f"; {facts.empty} empty answers"
    if verdict == "PASS":
        status, code = ("warn" if any(f.severity == "warn" for f in notes) else "pass"), Exit.PASS
    else:
        status, code = ("fail" if verdict == "FAIL" else "inconclusive"), Exit.CHECK_FAILED
    return Outcome(status, code, f"PASS, with warnings: {text}" if status == "warn" else text, notes, data)  # type: ignore[arg-type] # the four literals above
