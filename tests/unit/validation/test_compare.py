"""`megamoe compare`: two runs of the same questions, flips shown with both answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from megamoe.compare.sides import compare_sides
from megamoe_atom.problem import Exit, Problem

RULES = {
    "task": "gsm8k",
    "metric": "exact_match,flexible-extract",
    "num_fewshot": 3,
    "n_required": 400,
    "floor": 0.5,
    "paired_find_loss": 0.05,
}


def side(folder: Path, wrong: set[int], n: int = 400, **run: Any) -> str:
    """A finished run folder of n questions."""
    folder.mkdir()
    rows = [
        {
            "doc_id": i,
            "doc_hash": f"q{i}",
            "filter": "flexible-extract",
            "resps": [[f"#### {i + (i in wrong)}"]],
            "filtered_resps": [str(i)],
            "exact_match": 0.0 if i in wrong else 1.0,
        }
        for i in range(n)
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    result = {
        "results": {"gsm8k": {"exact_match,flexible-extract": 1 - len(wrong) / n}},
        "versions": {"gsm8k": 3.0},
        "n-shot": {"gsm8k": 3},
        "n-samples": {"gsm8k": {"original": n, "effective": n}},
        "date": 200.0,
        "run_id": "r",
    }
    (folder / "result.json").write_text(json.dumps(result))
    record = {
        "run_id": "r",
        "server_started": 100.0,
        "client_exit": 0,
        "results_dir": str(folder),
        "status": "complete",
    }
    (folder / "run.json").write_text(json.dumps({**record, **run}))
    return str(folder)


@pytest.fixture
def policy(tmp_path: Path) -> str:
    (tmp_path / "p.json").write_text(json.dumps(RULES))
    return str(tmp_path / "p.json")


def compare(before: str, after: str, policy: str, **given: Any) -> Any:
    return compare_sides(before, after, policy, given.pop("dataset", None), given.pop("out", "unused"), given)


def test_a_loss_is_shown_question_by_question_with_both_answers(tmp_path: Path, policy: str) -> None:
    outcome = compare(side(tmp_path / "a", {1}), side(tmp_path / "b", set(range(2, 22))), policy)
    assert (outcome.exit_code, outcome.data["verdict"]) == (Exit.CHECK_FAILED, "FAIL")
    lost = outcome.data["flips"][0]
    assert lost == {"flip": "lost", "doc_id": 2, "before": "#### 2", "after": "#### 3"}
    assert outcome.data["flips"][-1]["flip"] == "gained" and "lost 2:" in outcome.text


def test_equal_releases_pass(tmp_path: Path, policy: str) -> None:
    outcome = compare(side(tmp_path / "a", {1, 2}), side(tmp_path / "b", {2, 3}), policy)
    assert (outcome.exit_code, outcome.data["verdict"]) == (Exit.PASS, "PASS")


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        pytest.param({}, {"server_watch": "broken"}, "SERVER_RESTARTED", id="judged side restarted"),
        pytest.param({"client_exit": 1}, {}, "BASELINE_CLIENT_FAILED", id="earlier side not finished"),
    ],
)
def test_a_side_that_is_no_evidence_makes_the_comparison_none(
    tmp_path: Path, policy: str, before: dict[str, Any], after: dict[str, Any], code: str
) -> None:
    outcome = compare(side(tmp_path / "a", {1}, **before), side(tmp_path / "b", {1}, **after), policy)
    assert outcome.exit_code == Exit.NO_EVIDENCE and code in [f.code for f in outcome.findings]


def test_other_questions_cannot_be_compared(tmp_path: Path, policy: str) -> None:
    outcome = compare(side(tmp_path / "a", {1}), side(tmp_path / "b", {1}, n=399), policy)
    assert outcome.exit_code == Exit.NO_EVIDENCE


def test_an_address_without_questions_is_refused(policy: str) -> None:
    with pytest.raises(Problem) as caught:
        compare("http://127.0.0.1:9", "http://127.0.0.1:9", policy)
    assert caught.value.code == "dataset_missing" and "--dataset" in caught.value.reasons[0].fix


def test_two_addresses_are_asked_one_after_the_other_into_folders_of_their_own(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(request: Any) -> None:
        asked.append((request.url, request.out, request.early_stop))
        side(Path(request.out), {1})

    monkeypatch.setattr("megamoe.gsm8k.run.run_gsm8k", run)
    (tmp_path / "out").mkdir()
    outcome = compare("http://a:1", "http://b:1", policy, dataset="q.jsonl", out=str(tmp_path / "out"))
    assert outcome.data["verdict"] == "PASS"
    assert asked == [
        ("http://a:1", str(tmp_path / "out/before"), False),
        ("http://b:1", str(tmp_path / "out/after"), False),
    ]
