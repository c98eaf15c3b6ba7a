"""Why a run is no evidence: protocol, samples, answers and run record against the policy. Pure functions."""

from __future__ import annotations

import math
from typing import Any

from megamoe_atom.problem import Reason

from megamoe.envelope import Finding
from megamoe.gate.evidence import Evidence
from megamoe.gate.policy import Policy
from megamoe.gate.samples import SampleFacts

AGAIN = "run the evaluation again on a healthy server, and find out why this one was not"


def or_unknown(value: Any) -> Any:
    return "unknown" if value is None else value


def number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def read_score(
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
                AGAIN,
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
        limit = number(protocol["limit"])
        if limit is not None and limit >= 1 and effective > limit:
            faults.append(
                Reason(
                    "LIMIT_CONTRADICTED",
                    f"the result names limit={limit:g} and {effective} answered questions",
                    "both cannot be true, so it was edited or put together from two runs",
                    "give the result of one run",
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
                Reason("SCORE_NOT_A_NUMBER", f"the standard error is {stderr}", "it cannot be negative", AGAIN)
            )
    return (None if score is None else float(score)), effective


def protocol_faults(policy: Policy, protocol: dict[str, Any]) -> list[Reason]:
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
        differs("PROTOCOL_SHOTS", "num_fewshot", or_unknown(protocol["num_fewshot"]), policy.num_fewshot)
    if protocol["task_version"] != policy.task_version:
        differs("PROTOCOL_TASK_VERSION", "task version", or_unknown(protocol["task_version"]), policy.task_version)
    if policy.endpoint is not None and protocol["endpoint"] != policy.endpoint:
        differs("PROTOCOL_ENDPOINT", "endpoint", or_unknown(protocol["endpoint"]), policy.endpoint)
    if policy.max_gen_toks is not None and protocol["max_gen_toks"] != policy.max_gen_toks:
        differs("PROTOCOL_MAX_GEN_TOKS", "max_gen_toks", or_unknown(protocol["max_gen_toks"]), policy.max_gen_toks)
    for key in ("dataset_sha256", "fewshot_sha256"):
        wanted = getattr(policy, key)
        if wanted is not None and protocol[key] != wanted:
            differs("PROTOCOL_" + key.upper(), key, or_unknown(protocol[key]), wanted)
    if protocol["scoring_changed"]:
        differs("PROTOCOL_SCORING", protocol["scoring_changed"], "not gsm8k version 3's", "the published rule")
    return faults


def sample_faults(
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


def answer_faults(policy: Policy, facts: SampleFacts, data: dict[str, Any]) -> list[Reason]:
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


def run_faults(policy: Policy, evidence: Evidence, data: dict[str, Any], notes: list[Finding]) -> list[Reason]:
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
    started, date = number(run.get("server_started")), number(evidence.result.get("date"))
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
    ended = number(run.get("server_started_at_end"))
    if started is not None and ended is not None and abs(ended - started) > 2:
        faults.append(
            Reason(
                "SERVER_RESTARTED",
                f"the server's start time was {started:.0f} when the run began and {ended:.0f} when it ended",
                "the answers come from two servers",
                AGAIN,
            )
        )
    if run.get("server_watch") == "broken":
        faults.append(
            Reason(
                "SERVER_RESTARTED",
                f"the server's port refused connections within the run ({run.get('refused', '?')} times)",
                "it went away and came back: the answers come from two servers",
                AGAIN,
            )
        )
    faults += _ranks_faults(run, data)
    image = number(run.get("image_created"))
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
        total = number(requests.get("total")) or 0
        failed, retried = number(requests.get("failed")) or 0, number(requests.get("retried")) or 0
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


def _ranks_faults(run: dict[str, Any], data: dict[str, Any]) -> list[Reason]:
    """The adapter's evidence before and after the run, where it was watched: same processes, and the fused path ran."""
    before, after = run.get("ranks"), run.get("ranks_at_end")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return []
    faults = []
    if not before and not after:
        return [
            Reason(
                "FUSED_NO_EVIDENCE",
                "the evidence of before and after the run names no rank",
                "without evidence the answers cannot be called the fused path's",
                "look whether the adapter is on (ATOM_USE_FLYDSL_FUSED=1) and MEGAMOE_STATUS_DIR is written",
            )
        ]
    others = sorted(r for r in {*before, *after} if _process(before.get(r)) != _process(after.get(r)))
    if others:
        faults.append(
            Reason(
                "SERVER_RESTARTED",
                f"the processes of ranks {', '.join(others)} are not the ones that the run began with",
                "the answers come from two servers",
                AGAIN,
            )
        )
        return faults
    grown = {r: after[r].get("launches", 0) - before[r].get("launches", 0) for r in before}
    data["fused_launches"] = grown
    idle = sorted(r for r, launches in grown.items() if launches <= 0)
    if idle:
        faults.append(
            Reason(
                "FUSED_PATH_IDLE",
                f"the launch counters of ranks {', '.join(idle)} did not grow within the run",
                "the answers did not come from the fused path",
                "look at that rank's log, and whether this is the server that was asked",
            )
        )
    return faults


def _process(rank: Any) -> tuple[Any, Any] | None:
    return (rank.get("pid"), rank.get("started_at")) if isinstance(rank, dict) else None


def _causes(requests: dict[str, Any]) -> str:
    causes = requests.get("causes")
    if not isinstance(causes, dict) or not causes:
        return ""
    return "(" + ", ".join(f"{name}: {count}" for name, count in sorted(causes.items())) + ")"
