"""The verdict. Pure: policy and evidence in, Outcome out.

Order matters: what makes the run no evidence (INVALID) is looked at first and alone, because a score computed from
empty, truncated, foreign or stale answers must not be shown as if it were one.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from megamoe_atom.problem import Exit, Reason

from megamoe.envelope import Finding, Outcome
from megamoe.gate import stats
from megamoe.gate.evidence import Evidence
from megamoe.gate.policy import Policy
from megamoe.gate.protocol import protocol_of, protocol_text
from megamoe.gate.samples import SampleFacts, summarise

_AGAIN = "run the evaluation again on a healthy server, and find out why this one was not"


def judge(policy: Policy, evidence: Evidence, baseline: Evidence | None = None) -> Outcome:
    """PASS, FAIL, INCONCLUSIVE or INVALID (data.verdict), with the numbers it rests on."""
    stopped = (evidence.run or {}).get("early_fail")
    if isinstance(stopped, dict) and (evidence.run or {}).get("status") == "early_fail":
        return _stopped_early(policy, stopped)
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
        score, n = _read_score(policy, evidence.result, protocol, faults)
        faults += _protocol_faults(policy, protocol)
    if evidence.samples is not None:
        facts, sample_faults = summarise(evidence.samples, policy.filter_name, policy.metric_name)
        faults += sample_faults
        if evidence.result:
            faults += _sample_faults(policy, facts, n, score, sample_faults)
        if facts.n:
            faults += _answer_faults(policy, facts, data)
    if evidence.run is not None:
        faults += _run_faults(policy, evidence, data, notes)
    if not evidence.result and not faults:
        faults.append(Reason("RESULT_MISSING", "there is no result to judge", "no evidence is no approval", _AGAIN))
    paired_facts = _baseline_facts(policy, evidence, baseline, facts, faults, data)
    if faults or score is None or n is None:
        return _invalid(faults, notes, data)

    right = round(score * n)
    verdicts = [_judge_floor(policy, score, right, n, data, notes), _judge_reference(policy, right, n, data, notes)]
    if paired_facts is not None and facts is not None:
        verdicts.append(_judge_paired(policy, facts, paired_facts, data, notes))
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


def _stopped_early(policy: Policy, stopped: dict[str, Any]) -> Outcome:
    """The sequential test of `megamoe gsm8k` already ruled the floor out; no full result is needed."""
    what = (
        f"stopped after {stopped.get('answers')} answers, {stopped.get('right')} of them right: an accuracy of "
        f"{stopped.get('floor')} is ruled out (false alarms {stopped.get('alpha')} at most)"
    )
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
                "suspect weight layout or scales; the answers are in the run folder's journal.jsonl",
            )
        ],
        {"verdict": "FAIL", "policy": _policy_data(policy), "early_fail": stopped},
    )


def _policy_data(policy: Policy) -> dict[str, Any]:
    return {k: v for k, v in asdict(policy).items() if v not in (None, "")}


def _read_score(
    policy: Policy, result: dict[str, Any], protocol: dict[str, Any], faults: list[Reason]
) -> tuple[float | None, int | None]:
    task = result.get("results", {}).get(policy.task) if isinstance(result.get("results"), dict) else None
    if not isinstance(task, dict):
        known = sorted(result.get("results") or {}) if isinstance(result.get("results"), dict) else []
        faults.append(
            Reason(
                "TASK_MISSING",
                f"the result has no task {policy.task!r} (it has: {known})",
                "another task's score says nothing here",
                "run the policy's task",
            )
        )
        return None, None
    score = task.get(policy.metric)
    if score is None:
        known = sorted(k for k in task if "," in k and "stderr" not in k)
        faults.append(
            Reason(
                "FILTER_MISSING",
                f"the result has no {policy.metric!r} (it has: {known})",
                "another metric or filter gives another number for the same answers",
                "run the task with that filter, or name the right metric in the policy",
            )
        )
    elif isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1 or math.isnan(score):
        faults.append(
            Reason(
                "SCORE_NOT_A_NUMBER",
                f"{policy.metric} is {score!r}, not a share between 0 and 1",
                "a score that is not a number decides nothing",
                _AGAIN,
            )
        )
        score = None
    effective, original = protocol["n_effective"], protocol["n_original"]
    if effective is None:
        faults.append(
            Reason(
                "N_UNKNOWN",
                "the result does not say how many questions were answered",
                "without n there is no interval and no verdict",
                "give lm-eval's full result file",
            )
        )
    else:
        if effective < policy.n_required:
            faults.append(
                Reason(
                    "TOO_FEW_QUESTIONS",
                    f"{effective} questions were answered, the policy requires "
                    f"{policy.n_required}" + (f" (limit={protocol['limit']})" if protocol["limit"] else ""),
                    "the first questions are easier than the rest, and a subset fails good runs by chance",
                    "run the whole set, without a limit",
                )
            )
        if original is not None and effective > original:
            faults.append(
                Reason(
                    "TOO_MANY_QUESTIONS",
                    f"{effective} answers to a data set of {original} questions",
                    "some questions count twice",
                    "give the result of one run",
                )
            )
        stderr = task.get(policy.metric.replace(",", "_stderr,", 1))
        if score is not None and isinstance(stderr, (int, float)) and not isinstance(stderr, bool) and stderr < 0:
            faults.append(
                Reason("SCORE_NOT_A_NUMBER", f"the standard error is {stderr}", "it cannot be negative", _AGAIN)
            )
    return (None if score is None else float(score)), effective


def _protocol_faults(policy: Policy, protocol: dict[str, Any]) -> list[Reason]:
    faults = []

    def differs(code: str, what: str, found: Any, wanted: Any) -> None:
        faults.append(
            Reason(
                code,
                f"protocol differs from the policy: {what} is {found}, the policy says {wanted}",
                "scores of different protocols are different quantities under one name",
                f"run the evaluation with {what}={wanted}",
            )
        )

    if protocol["num_fewshot"] != policy.num_fewshot:
        differs("PROTOCOL_SHOTS", "num_fewshot", _or_unknown(protocol["num_fewshot"]), policy.num_fewshot)
    if protocol["task_version"] != policy.task_version:
        differs("PROTOCOL_TASK_VERSION", "task version", _or_unknown(protocol["task_version"]), policy.task_version)
    if policy.endpoint is not None and protocol["endpoint"] != policy.endpoint:
        differs("PROTOCOL_ENDPOINT", "endpoint", _or_unknown(protocol["endpoint"]), policy.endpoint)
    if policy.max_gen_toks is not None and protocol["max_gen_toks"] != policy.max_gen_toks:
        differs("PROTOCOL_MAX_GEN_TOKS", "max_gen_toks", _or_unknown(protocol["max_gen_toks"]), policy.max_gen_toks)
    for key in ("dataset_sha256", "fewshot_sha256"):
        wanted = getattr(policy, key)
        if wanted is not None and protocol[key] != wanted:
            differs("PROTOCOL_" + key.upper(), key, _or_unknown(protocol[key]), wanted)
    if protocol["scoring_changed"]:
        differs("PROTOCOL_SCORING", protocol["scoring_changed"], "not gsm8k version 3's", "the published rule")
    return faults


def _or_unknown(value: Any) -> Any:
    return "unknown" if value is None else value


def _sample_faults(
    policy: Policy, facts: SampleFacts, n: int | None, score: float | None, earlier: list[Reason]
) -> list[Reason]:
    faults = []
    distinct = len(facts.right_by_doc)
    if n is not None and facts.n and (facts.n != n or distinct != n):
        missing = sorted(set(range(n)) - set(facts.right_by_doc))
        faults.append(
            Reason(
                "SAMPLES_MISSING",
                f"the samples cover {distinct} documents in {facts.n} lines, the result "
                f"says {n}" + (f"; missing doc_id {missing[:3]}" if missing else ""),
                "what is missing may be exactly what failed",
                "give the complete samples of this run",
            )
        )
    elif n is not None and facts.n and set(facts.right_by_doc) != set(range(n)):
        missing = sorted(set(range(n)) - set(facts.right_by_doc))
        faults.append(
            Reason(
                "SAMPLES_MISSING",
                f"{len(missing)} of the documents 0 to {n - 1} are missing "
                f"(first: {missing[:3]}) and others stand in their place",
                "these are not the answers to the policy's questions",
                "give the samples of this run",
            )
        )
    elif not earlier and score is not None and facts.n and abs(facts.right / facts.n - score) > 0.5 / facts.n:
        faults.append(
            Reason(
                "SAMPLES_FOREIGN",
                f"the samples hold {facts.right} right answers of {facts.n}, the result "
                f"was computed from {score * facts.n:.1f}",
                "result and samples come from different runs",
                "give files of the same run",
            )
        )
    return faults


def _answer_faults(policy: Policy, facts: SampleFacts, data: dict[str, Any]) -> list[Reason]:
    faults = []
    answered = facts.n - facts.empty - facts.failed
    data["answers"] = {
        "n": facts.n,
        "empty": facts.empty,
        "failed": facts.failed,
        "unparsed": facts.unparsed,
        "one_repeated_character": facts.garbage,
        "truncated": facts.truncated if facts.truncation_known else None,
    }
    information = (
        f"{facts.right}/{answered} = {facts.right / answered:.3f} on the answered ones, as information only"
        if answered
        else "nothing was answered"
    )
    if facts.failed:
        faults.append(
            Reason(
                "EVAL_NO_RESPONSE",
                f"{facts.failed} of {facts.n} requests ({facts.failed / facts.n:.1%}) "
                f"have no response at all; {information}",
                "after its last retry the client stores nothing, which then counts as a wrong answer",
                "look at the transport and the server's log, then run again",
            )
        )
    if facts.empty / facts.n > policy.max_empty_rate:
        faults.append(
            Reason(
                "EVAL_EMPTY",
                f"{facts.empty} empty answers of {facts.n} ({facts.empty / facts.n:.1%}, "
                f"allowed {policy.max_empty_rate:.1%}); {information}",
                "an empty answer is a fault of serving or of the token budget; counted as wrong it looks "
                "like low accuracy, and left out it hides the fault",
                "find out why they are empty (token budget used up by reasoning, stop string, null content, "
                "dropped streams), then run again",
            )
        )
    if facts.truncation_known and facts.truncated / facts.n > policy.max_truncated_rate:
        faults.append(
            Reason(
                "EVAL_TRUNCATED",
                f"{facts.truncated} answers of {facts.n} ({facts.truncated / facts.n:.1%}, "
                f"allowed {policy.max_truncated_rate:.1%}) ended at the token limit; {information}",
                "an answer that was cut before its number counts as wrong though the model may know it",
                "raise max_gen_toks (2048 or more for a model that thinks first)",
            )
        )
    return faults


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _run_faults(policy: Policy, evidence: Evidence, data: dict[str, Any], notes: list[Finding]) -> list[Reason]:
    run = evidence.run or {}
    faults = []
    data["run_id"] = run.get("run_id")
    for key in ("image_digest", "args", "model", "url", "dataset", "dataset_sha256", "fewshot_sha256", "early_fail"):
        if run.get(key) is not None:
            data[key] = run[key]
    for key in ("run_id", "server_started", "client_exit", "results_dir"):
        if key not in run:
            faults.append(
                Reason(
                    "RUN_INCOMPLETE",
                    f"the run record has no {key}",
                    "what is absent is unknown, not fine",
                    f"record {key} with the run",
                )
            )
    if "client_exit" in run and run["client_exit"] != 0:
        faults.append(
            Reason(
                "CLIENT_FAILED",
                f"the evaluation client ended with {run['client_exit']!r}, not 0",
                "a file it left behind is from an earlier run or is not complete",
                "read the client's output, mend the cause, run again",
            )
        )
    if run.get("status", "complete") != "complete":
        faults.append(
            Reason(
                "RUN_PARTIAL",
                f"the run record says {run['status']!r}",
                "a partial run has not asked all questions",
                "resume it with the same --out folder",
            )
        )
    theirs = evidence.result.get("run_id")
    if theirs is not None and theirs != run.get("run_id"):
        faults.append(
            Reason(
                "RESULT_FOREIGN",
                f"the result is of run {theirs!r}, the run record of {run.get('run_id')!r}",
                "they do not belong together",
                "give files of one run",
            )
        )
    started, date = _number(run.get("server_started")), _number(evidence.result.get("date"))
    if "server_started" in run and started is None:
        if run.get("server_watch") == "unbroken":
            notes.append(
                Finding(
                    "SERVER_START_UNKNOWN",
                    "warn",
                    "the server does not say when it was started",
                    "that it is the same server throughout rests on its port never having been closed",
                    "pass --server-started (docker inspect gives State.StartedAt)",
                )
            )
        else:
            faults.append(
                Reason(
                    "SERVER_START_UNKNOWN",
                    f"server_started is {run['server_started']!r}",
                    "a stale result cannot be told from a new one",
                    "record it in epoch seconds",
                )
            )
    if evidence.result and date is None:
        faults.append(
            Reason(
                "RESULT_UNDATED",
                "the result carries no date",
                "its age against the server is unknown",
                "give lm-eval's full result file",
            )
        )
    if started is not None and date is not None and date < started:
        faults.append(
            Reason(
                "RESULT_STALE",
                f"the evaluation began at {date:.0f}, the server was started at {started:.0f}, "
                f"{started - date:.0f} s later",
                "the answers are of an earlier server, or it was restarted within the run",
                "run the evaluation again on the server that is up now",
            )
        )
    ended = _number(run.get("server_started_at_end"))
    if started is not None and ended is not None and abs(ended - started) > 2:
        faults.append(
            Reason(
                "SERVER_RESTARTED",
                f"the server's start time was {started:.0f} when the run began and {ended:.0f} when it ended",
                "the answers come from two servers",
                _AGAIN,
            )
        )
    if run.get("server_watch") == "broken":
        faults.append(
            Reason(
                "SERVER_RESTARTED",
                f"the server's port refused connections within the run ({run.get('refused', '?')} times)",
                "it went away and came back: the answers come from two servers",
                _AGAIN,
            )
        )
    image = _number(run.get("image_created"))
    if image is not None and date is not None and date < image:
        faults.append(
            Reason(
                "RESULT_OLDER_THAN_IMAGE",
                f"the evaluation began {image - date:.0f} s before the image was built",
                "it measured another image",
                "run the evaluation again on this image",
            )
        )
    requests = run.get("requests")
    if isinstance(requests, dict):
        data["requests"] = requests
        total = _number(requests.get("total")) or 0
        failed, retried = _number(requests.get("failed")) or 0, _number(requests.get("retried")) or 0
        if total and failed / total > policy.max_error_rate:
            faults.append(
                Reason(
                    "TRANSPORT_ERRORS",
                    f"{failed:.0f} of {total:.0f} requests ({failed / total:.1%}, allowed "
                    f"{policy.max_error_rate:.1%}) had no answer after all retries",
                    "they count as wrong answers that the model never gave",
                    "mend the transport, run again",
                )
            )
        if total and retried / total > policy.max_retry_rate:
            faults.append(
                Reason(
                    "TRANSPORT_RETRIES",
                    f"{retried:.0f} of {total:.0f} requests ({retried / total:.1%}, "
                    f"allowed {policy.max_retry_rate:.1%}) had to be sent again {_causes(requests)}",
                    "a service that drops so many is not fit to hand over, whatever it answers",
                    "mend what drops them (proxy, timeouts, overload), run again",
                )
            )
        elif retried:
            notes.append(
                Finding(
                    "TRANSPORT_RETRIES",
                    "warn",
                    f"{retried:.0f} of {total:.0f} requests "
                    f"({retried / total:.1%}) had to be sent again {_causes(requests)}".rstrip(),
                    f"within the policy's {policy.max_retry_rate:.1%}, but a healthy path drops none",
                    "look at the proxy's and the server's log",
                )
            )
    return faults


def _causes(requests: dict[str, Any]) -> str:
    causes = requests.get("causes")
    if not isinstance(causes, dict) or not causes:
        return ""
    return "(" + ", ".join(f"{name}: {count}" for name, count in sorted(causes.items())) + ")"


def _baseline_facts(
    policy: Policy,
    evidence: Evidence,
    baseline: Evidence | None,
    facts: SampleFacts | None,
    faults: list[Reason],
    data: dict[str, Any],
) -> SampleFacts | None:
    if baseline is None:
        if policy.paired_required:
            faults.append(
                Reason(
                    "BASELINE_MISSING",
                    "the policy requires a paired comparison and no baseline was given",
                    "without it the comparison has not been made",
                    "give --baseline RUN_FOLDER",
                )
            )
        data["paired"] = {"status": "not_run", "why": "no baseline was given"}
        return None
    if facts is None or baseline.samples is None:
        faults.append(
            Reason(
                "BASELINE_SAMPLES",
                "a paired comparison needs the samples of both runs",
                "it compares question by question",
                "give --samples, and a baseline with its samples",
            )
        )
        return None
    before, before_faults = summarise(baseline.samples, policy.filter_name, policy.metric_name)
    faults += [Reason("BASELINE_" + r.code, "baseline: " + r.what, r.why, r.fix) for r in before_faults]
    if before.empty / max(before.n, 1) > policy.max_empty_rate or before.failed:
        faults.append(
            Reason(
                "BASELINE_EMPTY",
                f"baseline: {before.empty} empty and {before.failed} missing of {before.n}",
                "a loss against a damaged baseline cannot be seen",
                "measure the baseline again",
            )
        )
    if set(before.right_by_doc) != set(facts.right_by_doc):
        faults.append(
            Reason(
                "BASELINE_QUESTIONS",
                f"the baseline answers {len(before.right_by_doc)} questions, this run "
                f"{len(facts.right_by_doc)}, and they are not the same ones",
                "only the same questions can be paired",
                "run both on the same file",
            )
        )
    else:
        other = [
            d for d, h in facts.prompt_by_doc.items() if h and before.prompt_by_doc[d] and h != before.prompt_by_doc[d]
        ]
        if other:
            faults.append(
                Reason(
                    "BASELINE_QUESTIONS",
                    f"{len(other)} questions differ in text (first: doc_id {other[0]})",
                    "only the same questions can be paired",
                    "run both on the same file",
                )
            )
    if baseline.result and evidence.result:
        ours, theirs = protocol_of(evidence.result, policy.task), protocol_of(baseline.result, policy.task)
        for key in ("num_fewshot", "task_version", "endpoint", "max_gen_toks", "fewshot_sha256", "dataset_sha256"):
            if ours[key] != theirs[key]:
                faults.append(
                    Reason(
                        "BASELINE_PROTOCOL",
                        f"{key} is {_or_unknown(theirs[key])} in the baseline and {_or_unknown(ours[key])} here",
                        "scores of different protocols cannot be compared",
                        "measure the baseline again with the same protocol",
                    )
                )
    return before


def judge_pair(
    policy: Policy, now: Evidence, before: Evidence, data: dict[str, Any]
) -> tuple[str, list[Reason], list[Finding]]:
    """The paired part alone, for `megamoe compare`: verdict, faults (then there is no verdict) and findings."""
    faults, notes = [*now.faults, *before.faults], list[Finding]()
    facts, more = summarise(now.samples or [], policy.filter_name, policy.metric_name)
    faults += more
    if facts.n:
        faults += _answer_faults(policy, facts, data)
    earlier = _baseline_facts(policy, now, before, facts, faults, data)
    if faults or earlier is None:
        return "INVALID", faults, notes
    return _judge_paired(policy, facts, earlier, data, notes), faults, notes


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


def _judge_reference(policy: Policy, right: int, n: int, data: dict[str, Any], notes: list[Finding]) -> str:
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


def _judge_paired(
    policy: Policy, now: SampleFacts, before: SampleFacts, data: dict[str, Any], notes: list[Finding]
) -> str:
    lost_ids = sorted(d for d, ok in before.right_by_doc.items() if ok and not now.right_by_doc[d])
    gained_ids = sorted(d for d, ok in before.right_by_doc.items() if not ok and now.right_by_doc[d])
    n, lost, gained = len(now.right_by_doc), len(lost_ids), len(gained_ids)
    flip_rate = (lost + gained) / n
    tolerated = policy.paired_tolerated_loss
    p = stats.p_loss_exceeds(lost, gained, n, tolerated)
    can_find = stats.detectable_loss(flip_rate, n, policy.paired_alpha, policy.paired_power, tolerated)
    upper = stats.loss_upper_bound(lost, gained, n, 1 - policy.paired_alpha)
    needed = stats.questions_needed(
        flip_rate, policy.paired_find_loss, policy.paired_alpha, policy.paired_power, tolerated
    )
    paired: dict[str, Any] = {
        "baseline_score": before.right / n,
        "n": n,
        "lost": lost,
        "gained": gained,
        "loss": round((lost - gained) / n, 6),
        "p": round(p, 6),
        "test": "McNemar exact, one-sided" if tolerated == 0 else "Tango score test, one-sided",
        "loss_upper_bound_95": round(upper, 6),
        "loss_this_run_could_find": round(can_find, 6),
        "questions_needed": needed,
        "lost_doc_ids": lost_ids[:50],
        "gained_doc_ids": gained_ids[:50],
    }
    data["paired"] = paired
    could = (
        f"with {n} questions and {flip_rate:.1%} flips it could settle a loss of {100 * can_find:.1f} points or more "
        f"({policy.paired_power:.0%} power, {policy.paired_alpha:.0%} false alarms)"
    )
    if p <= policy.paired_alpha:
        paired["verdict"] = "FAIL"
        notes.append(
            Finding(
                "LOSS_AGAINST_BASELINE",
                "error",
                f"{lost} questions were lost and {gained} gained against the "
                f"baseline: a loss of {100 * (lost - gained) / n:.1f} points (p = {p:.2g}, tolerated "
                f"{100 * tolerated:.1f} points); {could}",
                "chance alone flips as many one way as the other",
                "look at the lost questions (data.paired.lost_doc_ids) and at what changed",
            )
        )
        return "FAIL"
    if needed <= n or upper < policy.paired_find_loss:
        paired["verdict"] = "PASS"
        notes.append(
            Finding(
                "NO_LOSS_FOUND",
                "info",
                f"{lost} lost, {gained} gained against the baseline (p = {p:.2g}); {could}",
                "the comparison was able to find the loss that the policy asks about",
                "nothing to do",
            )
        )
        return "PASS"
    paired["verdict"] = "INCONCLUSIVE"
    paired["questions_still_needed"] = needed - n
    notes.append(
        Finding(
            "PAIRED_INCONCLUSIVE",
            "warn",
            f"{lost} lost, {gained} gained: no loss is shown (p = {p:.2g}), but a loss "
            f"of {100 * policy.paired_find_loss:.1f} points cannot be ruled out: {needed - n} questions more are "
            f"needed ({needed} in all); {could}",
            "absence of evidence from too small a comparison is not evidence",
            "run both sides on a larger GSM8K-format file (these questions and further ones), then compare again",
        )
    )
    return "INCONCLUSIVE"


def _filter_gap(policy: Policy, result: dict[str, Any], data: dict[str, Any], notes: list[Finding]) -> None:
    task = result["results"][policy.task]
    strict, flexible = (_number(task.get(f"{policy.metric_name},{f}")) for f in ("strict-match", "flexible-extract"))
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
        + (f", reference {policy.reference:.4f}" if policy.reference is not None else ", no reference")
        + f"; {protocol_text(data['protocol'])}"
    )
    if facts is not None:
        text += f"; {facts.empty} empty answers"
    if verdict == "PASS":
        status, code = ("warn" if any(f.severity == "warn" for f in notes) else "pass"), Exit.PASS
    else:
        status, code = ("fail" if verdict == "FAIL" else "inconclusive"), Exit.CHECK_FAILED
    return Outcome(status, code, f"PASS, with warnings: {text}" if status == "warn" else text, notes, data)  # type: ignore[arg-type] # the four literals above
