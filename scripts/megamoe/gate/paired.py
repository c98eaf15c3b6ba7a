"""The paired comparison with a baseline: question by question, in one planned look or in two. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megamoe_atom.problem import Reason

from megamoe.envelope import Finding
from megamoe.gate import stats
from megamoe.gate.evidence import Evidence
from megamoe.gate.faults import AGAIN, answer_faults, or_unknown, run_faults
from megamoe.gate.policy import Policy
from megamoe.gate.protocol import protocol_of
from megamoe.gate.samples import SampleFacts, summarise


def baseline_facts(
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
                        f"{key} is {or_unknown(theirs[key])} in the baseline and {or_unknown(ours[key])} here",
                        "scores of different protocols cannot be compared",
                        "measure the baseline again with the same protocol",
                    )
                )
    return before


def second_stage(
    policy: Policy,
    evidence: Evidence,
    facts: SampleFacts | None,
    further: Sequence[tuple[Evidence, Evidence]],
    faults: list[Reason],
    data: dict[str, Any],
) -> list[tuple[SampleFacts, SampleFacts]]:
    """Facts of the further runs, each judged like the first: answers, transport, server, protocol, questions."""
    if not further:
        return []
    if policy.paired_stages != 2:
        faults.append(
            Reason(
                "SECOND_STAGE_NOT_PLANNED",
                f"{len(further)} further runs were given, and the policy plans one look (paired_stages = 1)",
                "a second look after the first has its own false alarms; both are within the limit only when planned",
                "use a policy with paired_stages = 2",
            )
        )
        return []
    seen = {h for h in (facts.prompt_by_doc.values() if facts else ()) if h}
    mine = protocol_of(evidence.result, policy.task) if evidence.result else {}
    out: list[tuple[SampleFacts, SampleFacts]] = []
    for number, (now, before) in enumerate(further, 1):
        where = f"further run {number}"
        more = list(now.faults)
        now_facts, odd = summarise(now.samples or [], policy.filter_name, policy.metric_name)
        more += odd
        if now_facts.n:
            more += answer_faults(policy, now_facts, {})
        if now.run is None:
            more.append(Reason("RUN_MISSING", "it has no run record", "its server and age are unknown", AGAIN))
        else:
            more += run_faults(policy, now, {}, [])
            first = evidence.run or {}
            for key in ("model", "image_digest"):
                if first.get(key) != now.run.get(key):
                    more.append(
                        Reason(
                            "FURTHER_OTHER_DEPLOYMENT",
                            f"its {key} is {now.run.get(key)!r}, the first run's {first.get(key)!r}",
                            "both stages must ask the same deployment",
                            "run the further questions on the deployment that is judged",
                        )
                    )
        theirs = protocol_of(now.result, policy.task) if now.result else {}
        for key in ("num_fewshot", "task_version", "endpoint", "max_gen_toks", "fewshot_sha256"):
            if mine.get(key) != theirs.get(key):
                more.append(
                    Reason(
                        "FURTHER_PROTOCOL",
                        f"its {key} is {or_unknown(theirs.get(key))}, the first run's {or_unknown(mine.get(key))}",
                        "flips of different protocols cannot be added up",
                        "run the further questions with the same settings",
                    )
                )
        hashes = {h for h in now_facts.prompt_by_doc.values() if h}
        if not hashes or hashes & seen:
            more.append(
                Reason(
                    "FURTHER_QUESTIONS",
                    f"{len(hashes & seen)} of its questions were asked before"
                    if hashes
                    else "its questions have no hash",
                    "a question that counts twice is not further evidence",
                    "use a file with other questions",
                )
            )
        seen |= hashes
        earlier = baseline_facts(policy, now, before, now_facts, more, {})
        faults += [Reason(r.code, f"{where}: {r.what}", r.why, r.fix) for r in more]
        if earlier is not None:
            out.append((now_facts, earlier))
    return out


def judge_pair(
    policy: Policy, now: Evidence, before: Evidence, data: dict[str, Any]
) -> tuple[str, list[Reason], list[Finding]]:
    """The paired part alone, for `megamoe compare`: verdict, faults (then there is no verdict) and findings."""
    faults, notes = [*now.faults, *before.faults], list[Finding]()
    facts, more = summarise(now.samples or [], policy.filter_name, policy.metric_name)
    faults += more
    if facts.n:
        faults += answer_faults(policy, facts, data)
    if now.run is not None:
        faults += run_faults(policy, now, data, notes)
    if before.run is not None:
        odd = run_faults(policy, before, {}, [])
        faults += [Reason("BASELINE_" + r.code, f"the earlier side: {r.what}", r.why, r.fix) for r in odd]
    earlier = baseline_facts(policy, now, before, facts, faults, data)
    if faults or earlier is None:
        return "INVALID", faults, notes
    return judge_paired(policy, facts, earlier, data, notes), faults, notes


def _flips(now: SampleFacts, before: SampleFacts) -> tuple[list[int], list[int]]:
    """doc_ids of lost and of gained questions."""
    lost = sorted(d for d, ok in before.right_by_doc.items() if ok and not now.right_by_doc[d])
    return lost, sorted(d for d, ok in before.right_by_doc.items() if not ok and now.right_by_doc[d])


def judge_paired(
    policy: Policy,
    now: SampleFacts,
    before: SampleFacts,
    data: dict[str, Any],
    notes: list[Finding],
    second: Sequence[tuple[SampleFacts, SampleFacts]] = (),
) -> str:
    lost_ids, gained_ids = _flips(now, before)
    n, lost, gained = len(now.right_by_doc), len(lost_ids), len(gained_ids)
    flip_rate = (lost + gained) / n
    tolerated, alpha, power = policy.paired_tolerated_loss, policy.first_look_alpha, policy.paired_power
    p = stats.p_loss_exceeds(lost, gained, n, tolerated)
    can_find = stats.detectable_loss(flip_rate, n, alpha, power, tolerated)
    upper = stats.loss_upper_bound(lost, gained, n, 1 - policy.paired_alpha)
    needed = stats.questions_needed(flip_rate, policy.paired_find_loss, alpha, power, tolerated)
    verdict = "FAIL" if p <= alpha else "PASS" if needed <= n or upper < policy.paired_find_loss else "INCONCLUSIVE"
    paired: dict[str, Any] = {
        "baseline_score": before.right / n,
        "n": n,
        "lost": lost,
        "gained": gained,
        "loss": round((lost - gained) / n, 6),
        "p": round(p, 6),
        "limit_p": alpha,
        "test": "McNemar exact, one-sided" if tolerated == 0 else "Tango score test, one-sided",
        "loss_upper_bound_95": round(upper, 6),
        "loss_this_run_could_find": round(can_find, 6),
        "questions_needed": needed,
        "lost_doc_ids": lost_ids[:50],
        "gained_doc_ids": gained_ids[:50],
        "verdict": verdict,
    }
    data["paired"] = paired
    could = (
        f"with {n} questions and {flip_rate:.1%} flips it could settle a loss of {100 * can_find:.1f} points or more "
        f"({power:.0%} power, {alpha:.0%} false alarms)"
    )
    if verdict == "FAIL":
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
    if verdict == "PASS":
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
    if second:
        return _judge_second_look(policy, (n, lost, gained), second, paired, notes)
    planned = policy.paired_stages == 2
    if planned:
        needed = stats.second_look_questions(flip_rate, n, policy.paired_find_loss, policy.paired_alpha, power)
        paired["questions_needed"] = needed
    paired["questions_still_needed"] = needed - n
    notes.append(
        Finding(
            "PAIRED_INCONCLUSIVE",
            "warn",
            f"{lost} lost, {gained} gained: no loss is shown (p = {p:.2g}), but a loss "
            f"of {100 * policy.paired_find_loss:.1f} points cannot be ruled out: {needed - n} questions more are "
            f"needed ({needed} in all); {could}",
            "absence of evidence from too small a comparison is not evidence",
            f"run both sides on a GSM8K-format file of {needed - n} other questions (GSM8K's training file has "
            "7,473), then give the gate --further RUN --further-baseline RUN as well"
            if planned
            else "run both sides on a larger GSM8K-format file, then compare again; a policy with paired_stages = 2 "
            "plans for further files from the start",
        )
    )
    return "INCONCLUSIVE"


def _judge_second_look(
    policy: Policy,
    first: tuple[int, int, int],
    second: Sequence[tuple[SampleFacts, SampleFacts]],
    paired: dict[str, Any],
    notes: list[Finding],
) -> str:
    """Both stages together, after a first look that settled nothing. Both looks' false alarms: paired_alpha at most."""
    n, lost, gained = first
    flips_1 = lost + gained
    for now, before in second:
        more_lost, more_gained = _flips(now, before)
        n, lost, gained = n + len(now.right_by_doc), lost + len(more_lost), gained + len(more_gained)
    flips_2 = lost + gained - flips_1
    limit = stats.second_look(flips_1, flips_2, policy.first_look_alpha, policy.paired_alpha)
    flip_rate, alpha = (lost + gained) / n, stats.mcnemar_p(limit, lost + gained - limit)
    upper = stats.loss_upper_bound(lost, gained, n, 1 - policy.paired_alpha)
    needed = (
        stats.questions_needed(flip_rate, policy.paired_find_loss, alpha, policy.paired_power)
        if limit <= lost + gained
        else stats.second_look_questions(
            flip_rate, first[0], policy.paired_find_loss, policy.paired_alpha, policy.paired_power
        )
    )
    able = limit <= lost + gained and needed <= n
    verdict = "FAIL" if lost >= limit else "PASS" if able or upper < policy.paired_find_loss else "INCONCLUSIVE"
    paired["verdict"] = verdict
    paired["second_look"] = {
        "n": n,
        "lost": lost,
        "gained": gained,
        "loss": round((lost - gained) / n, 6),
        "lost_limit": limit,
        "test": "group-sequential McNemar, exact given the flips of both stages",
        "loss_upper_bound_95": round(upper, 6),
        "questions_needed": needed,
    }
    seen = (
        f"{n} questions in two stages: {lost} lost and {gained} gained against the baseline ({limit} lost would be a "
        f"loss; false alarms of both looks {policy.paired_alpha:.0%} at most)"
    )
    if verdict == "FAIL":
        notes.append(
            Finding(
                "LOSS_AGAINST_BASELINE",
                "error",
                f"{seen}: a loss of {100 * (lost - gained) / n:.1f} points",
                "chance alone flips as many one way as the other",
                "look at the lost questions of both stages and at what changed",
            )
        )
    elif verdict == "PASS":
        notes.append(
            Finding(
                "NO_LOSS_FOUND",
                "info",
                seen,
                "both stages together were able to find the loss that the policy asks about",
                "nothing to do",
            )
        )
    else:
        paired["questions_still_needed"] = needed - n
        notes.append(
            Finding(
                "PAIRED_INCONCLUSIVE",
                "warn",
                f"{seen}; a loss of {100 * policy.paired_find_loss:.1f} points cannot be ruled out: "
                f"{needed - n} questions more would have been needed ({needed} in all)",
                "absence of evidence from too small a comparison is not evidence",
                "start over with a further file of that size: a third look is not planned for",
            )
        )
    return verdict
