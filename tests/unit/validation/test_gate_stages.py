"""The second stage of the paired comparison, and the verdict on a run that was stopped early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from megamoe.gate import stats
from megamoe.gate.evidence import Evidence
from megamoe.gate.judge import judge
from megamoe.gate.policy import Policy, parse_policy
from megamoe_atom.problem import Exit, Problem
from scipy.stats import binom

RULES = {
    "task": "gsm8k",
    "metric": "exact_match,flexible-extract",
    "num_fewshot": 3,
    "n_required": 1000,
    "floor": 0.5,
    "paired_stages": 2,
}
POLICY = parse_policy(RULES, "p")
RUN = {
    "run_id": "r",
    "server_started": 100.0,
    "client_exit": 0,
    "results_dir": ".",
    "model": "m",
    "image_digest": "sha256:1",
    "num_fewshot": 3,
}


def evidence(wrong: set[int], n: int = 1000, kind: str = "a", **run: Any) -> Evidence:
    """A run of n questions named after `kind`, of which `wrong` are answered wrongly."""
    rows = [
        {
            "doc_id": i,
            "doc_hash": f"{kind}{i}",
            "filter": "flexible-extract",
            "resps": [["#### 7"]],
            "filtered_resps": ["7"],
            "exact_match": 0.0 if i in wrong else 1.0,
        }
        for i in range(n)
    ]
    result = {
        "results": {"gsm8k": {"exact_match,flexible-extract": 1 - len(wrong) / n}},
        "versions": {"gsm8k": 3.0},
        "n-shot": {"gsm8k": 3},
        "n-samples": {"gsm8k": {"original": n, "effective": n}},
        "config": {"model": "local-completions"},
        "date": 200.0,
        "run_id": "r",
    }
    return Evidence(result=result, samples=rows, run={**RUN, **run})


# 25 lost and 25 gained of 1000: nothing shown, and too few questions to exclude a loss of one point.
OPEN = (evidence(set(range(25))), evidence(set(range(25, 50))))


def further(lost: int, gained: int, n: int = 4000, kind: str = "b", **run: Any) -> tuple[Evidence, Evidence]:
    now = evidence(set(range(lost)), n, kind, **run)
    return now, evidence(set(range(lost, lost + gained)), n, kind)


def test_an_unsettled_first_look_names_the_questions_still_needed_and_how_to_add_them() -> None:
    outcome = judge(POLICY, *OPEN)
    finding = next(f for f in outcome.findings if f.code == "PAIRED_INCONCLUSIVE")
    assert outcome.data["verdict"] == "INCONCLUSIVE" and "--further" in finding.fix
    assert str(outcome.data["paired"]["questions_still_needed"]) in finding.what


@pytest.mark.parametrize(
    ("lost", "gained", "verdict"),
    [
        pytest.param(90, 90, "PASS", id="no loss on 4000 more"),
        pytest.param(150, 60, "FAIL", id="two points lost"),
    ],
)
def test_further_files_settle_it(lost: int, gained: int, verdict: str) -> None:
    outcome = judge(POLICY, *OPEN, [further(lost, gained)])
    look = outcome.data["paired"]["second_look"]
    assert outcome.data["verdict"] == verdict and (look["n"], look["lost"]) == (5000, 25 + lost)


def test_the_summary_says_what_the_score_was_compared_with() -> None:
    alone = judge(POLICY, OPEN[0])
    assert ", no reference;" in alone.summary and "NO_REFERENCE" in [f.code for f in alone.findings]
    # Asking for a baseline beside the baseline would send its reader looking for what is there.
    compared = judge(POLICY, *OPEN)
    assert ", 25 lost and 25 gained against the baseline;" in compared.summary
    assert "no reference" not in compared.summary
    assert "NO_REFERENCE" not in [f.code for f in compared.findings]
    assert ", 115 lost and 115 gained against" in judge(POLICY, *OPEN, [further(90, 90)]).summary


def test_too_small_a_second_stage_stays_inconclusive() -> None:
    outcome = judge(POLICY, *OPEN, [further(6, 6, 200)])
    assert outcome.data["verdict"] == "INCONCLUSIVE" and outcome.data["paired"]["questions_still_needed"] > 0


def test_a_first_look_that_settles_it_is_not_changed_by_further_files() -> None:
    failed = (evidence(set(range(60))), evidence(set(range(60, 70))))
    assert judge(POLICY, *failed, [further(0, 400)]).data["verdict"] == "FAIL"


@pytest.mark.parametrize(
    ("pair", "code"),
    [
        pytest.param(further(9, 9, 1000, "a"), "FURTHER_QUESTIONS", id="the same questions again"),
        pytest.param(further(9, 9, image_digest="sha256:2"), "FURTHER_OTHER_DEPLOYMENT", id="another image"),
        pytest.param(further(9, 9, server_watch="broken"), "SERVER_RESTARTED", id="restarted"),
        pytest.param(
            further(9, 9, requests={"total": 4000, "failed": 100, "retried": 100}),
            "TRANSPORT_ERRORS",
            id="lost requests",
        ),
        pytest.param(
            (further(9, 9)[0], further(9, 9, 3000)[1]), "BASELINE_QUESTIONS", id="baseline of other questions"
        ),
    ],
)
def test_a_further_run_is_judged_like_the_first(pair: tuple[Evidence, Evidence], code: str) -> None:
    outcome = judge(POLICY, *OPEN, [pair])
    assert outcome.exit_code == Exit.NO_EVIDENCE and code in [f.code for f in outcome.findings]


def test_a_second_look_that_was_not_planned_is_no_evidence() -> None:
    outcome = judge(parse_policy({**RULES, "paired_stages": 1}, "p"), *OPEN, [further(90, 90)])
    assert [f.code for f in outcome.findings] == ["SECOND_STAGE_NOT_PLANNED"]


@pytest.mark.parametrize("change", [{"paired_stages": 3}, {"paired_tolerated_loss": 0.005}, {"paired_stages": True}])
def test_a_plan_that_cannot_be_exact_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Problem) as caught:
        parse_policy({**RULES, **change}, "p")
    assert caught.value.exit_code == Exit.REFUSED


@pytest.mark.parametrize(("flips_1", "flips_2"), [(5, 5), (10, 20), (26, 60), (40, 80), (66, 112), (66, 400)])
def test_both_looks_together_alarm_at_most_as_often_as_promised(flips_1: int, flips_2: int) -> None:
    first = stats.critical_lost(flips_1, POLICY.first_look_alpha)
    limit = stats.second_look(flips_1, flips_2, POLICY.first_look_alpha, 0.05)

    def alarms(at: int) -> float:
        later = sum(binom.pmf(k, flips_1, 0.5) * binom.sf(at - k - 1, flips_2, 0.5) for k in range(first))
        return float(binom.sf(first - 1, flips_1, 0.5) + later)

    assert alarms(limit) <= 0.05
    assert limit == 0 or alarms(limit - 1) > 0.05


STOPPED = {"answers": 40, "right": 3, "floor": 0.9, "alpha": 0.001}


def stopped(policy: Policy = POLICY, counts: dict[str, Any] | None = None, **run: Any) -> Any:
    record = {**RUN, "client_exit": 11, "status": "early_fail", "early_fail": counts or STOPPED, **run}
    return judge(policy, Evidence(run=record))


def test_a_run_stopped_early_fails_on_its_counts_alone() -> None:
    outcome = stopped()
    assert (outcome.exit_code, outcome.data["verdict"]) == (Exit.CHECK_FAILED, "FAIL")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param({"server_watch": "broken", "refused": 3}, "SERVER_RESTARTED", id="restarted"),
        pytest.param({"num_fewshot": 5}, "PROTOCOL_SHOTS", id="wrong shots"),
        pytest.param({"requests": {"total": 40, "failed": 9, "retried": 9}}, "TRANSPORT_ERRORS", id="lost requests"),
        pytest.param({"counts": {**STOPPED, "right": 30}}, "EARLY_FAIL_NOT_OF_THIS_POLICY", id="another floor"),
        pytest.param({"counts": {**STOPPED, "right": None}}, "EARLY_FAIL_COUNTS", id="no count"),
        pytest.param({"counts": {**STOPPED, "right": 41}}, "EARLY_FAIL_COUNTS", id="more right than asked"),
    ],
)
def test_a_run_stopped_early_must_be_sound_too(change: dict[str, Any], code: str) -> None:
    outcome = stopped(**change)
    assert outcome.exit_code == Exit.NO_EVIDENCE and code in [f.code for f in outcome.findings]


def test_the_packaged_policies_plan_their_looks(tmp_path: Path) -> None:
    from megamoe.gate.policy import load_policy

    assert [load_policy(p).paired_stages for p in ("v4-pro-fused", "v4-pro-standard", "v4-flash", "rehearsal")] == [
        2,
        2,
        2,
        1,
    ]
