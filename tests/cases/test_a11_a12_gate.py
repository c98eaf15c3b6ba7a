"""Cases A11 and A12 of shared/cases/README.md, and further inputs of their kinds, through the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

POLICY = {
    "task": "gsm8k",
    "metric": "exact_match,flexible-extract",
    "floor": 0.90,
    "reference": 0.9522,
    "n_required": 1319,
    "num_fewshot": 3,
    "max_empty_rate": 0.01,
}
GOOD = 1243 / 1319


def result(flexible: float = GOOD, strict: float = GOOD, **patch: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "results": {
            "gsm8k": {
                "alias": "gsm8k",
                "exact_match,strict-match": strict,
                "exact_match_stderr,strict-match": 0.006419,
                "exact_match,flexible-extract": flexible,
                "exact_match_stderr,flexible-extract": 0.006419,
            }
        },
        "versions": {"gsm8k": 3.0},
        "n-shot": {"gsm8k": 3},
        "n-samples": {"gsm8k": {"original": 1319, "effective": 1319}},
        "config": {
            "model": "local-completions",
            "limit": None,
            "model_args": "model=/models/demo-moe,base_url=http://127.0.0.1:8000/v1/completions,"
            "num_concurrent=64,max_retries=3,tokenized_requests=False",
        },
        "date": 1786503600.0,
    }
    return {**body, **patch}


def samples(empty: int, right: int, n: int = 1319, ids: list[int] | None = None) -> list[dict[str, Any]]:
    return [
        {
            "doc_id": ids[i] if ids else i,
            "filter": "flexible-extract",
            "resps": [["" if i < empty else "#### 7"]],
            "filtered_resps": ["[invalid]" if i < empty else "7"],
            "exact_match": 1.0 if empty <= i < empty + right else 0.0,
        }
        for i in range(n)
    ]


def gate(
    tmp_path: Path,
    body: dict[str, Any],
    rows: list[dict[str, Any]] | None = None,
    run: dict[str, Any] | None = None,
    **policy: Any,
) -> tuple[int, dict[str, Any], str]:
    (tmp_path / "p.json").write_text(json.dumps({**POLICY, **policy}))
    (tmp_path / "r.json").write_text(json.dumps(body))
    argv = [sys.executable, "-m", "megamoe", "gate", "--json", "--policy", "p.json", "--result", "r.json"]
    if rows is not None:
        (tmp_path / "s.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        argv += ["--samples", "s.jsonl"]
    if run is not None:
        (tmp_path / "run.json").write_text(json.dumps(run))
        argv += ["--run", "run.json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout), done.stdout


def test_a11_a_clean_result_passes_and_the_verdict_names_the_protocol(tmp_path: Path) -> None:
    code, out, _ = gate(tmp_path, result())
    assert (code, out["data"]["verdict"], out["status"]) == (0, "PASS", "pass")
    for words in ("0.9424", "3-shot", "flexible", "1319"):
        assert words in out["summary"]


def test_a11_twin_1_a_collapsed_strict_score_passes_with_a_warning(tmp_path: Path) -> None:
    code, out, _ = gate(tmp_path, result(strict=0.0197))
    assert (code, out["data"]["verdict"], out["status"]) == (0, "PASS", "warn")
    assert "FILTERS_DISAGREE" in [f["code"] for f in out["findings"]]


def test_a11_twin_2_the_same_file_fails_a_policy_on_strict_match(tmp_path: Path) -> None:
    code, out, _ = gate(tmp_path, result(strict=0.0197), metric="exact_match,strict-match")
    assert (code, out["data"]["verdict"]) == (1, "FAIL")


@pytest.mark.parametrize(
    ("patch", "finding"),
    [
        pytest.param({"n-shot": {"gsm8k": 5}}, "PROTOCOL_SHOTS", id="twin 3: five shots"),
        pytest.param({"versions": {"gsm8k": 2.0}}, "PROTOCOL_TASK_VERSION", id="older task version"),
        pytest.param({"n-samples": {"gsm8k": {"original": 1319, "effective": 200}}}, "TOO_FEW_QUESTIONS", id="subset"),
        pytest.param(
            {"n-samples": {"gsm8k": {"original": 1319, "effective": 1320}}}, "TOO_MANY_QUESTIONS", id="one too many"
        ),
        pytest.param({"config": {"model": "local-completions", "limit": 100}}, "LIMIT_CONTRADICTED", id="cut, whole"),
        pytest.param({"results": {"mmlu": {}}}, "TASK_MISSING", id="another task"),
        pytest.param({"results": {"gsm8k": {"exact_match,strict-match": 0.9}}}, "FILTER_MISSING", id="filter absent"),
        pytest.param(
            {"results": {"gsm8k": {"exact_match,flexible-extract": "N/A"}}}, "SCORE_NOT_A_NUMBER", id="no number"
        ),
    ],
)
def test_a_result_of_another_protocol_is_no_evidence(tmp_path: Path, patch: dict[str, Any], finding: str) -> None:
    code, out, text = gate(tmp_path, result(**patch))
    assert (code, out["data"]["verdict"]) == (5, "INVALID")
    assert finding in [f["code"] for f in out["findings"]] and "PASS" not in text


@pytest.mark.parametrize(
    ("right", "verdict"),
    [pytest.param(1188, "PASS", id="first score at the floor of 0.90"), pytest.param(1187, "FAIL", id="one below")],
)
def test_a_score_at_the_floor_passes_and_one_question_less_fails(tmp_path: Path, right: int, verdict: str) -> None:
    _, out, _ = gate(tmp_path, result(right / 1319, right / 1319), reference=None)
    assert out["data"]["verdict"] == verdict


def test_a_score_above_the_floor_and_far_below_the_reference_fails(tmp_path: Path) -> None:
    code, out, _ = gate(tmp_path, result(0.91, 0.91))
    assert code == 1 and [f["code"] for f in out["findings"] if f["severity"] == "error"] == ["BELOW_REFERENCE"]


def test_a12_sixteen_percent_empty_answers_are_no_evidence_and_no_accuracy(tmp_path: Path) -> None:
    code, out, text = gate(tmp_path, result(1055 / 1319, 0.7892), samples(210, 1055))
    assert (code, out["data"]["verdict"]) == (5, "INVALID")
    assert "EVAL_EMPTY" in [f["code"] for f in out["findings"]]
    for words in ("210 empty", "15.9", "1055/1109", "0.951", "information only"):
        assert words in text
    assert "PASS" not in text and "0.80" not in text


def test_a12_twin_five_empty_answers_pass_and_are_shown(tmp_path: Path) -> None:
    code, out, text = gate(tmp_path, result(), samples(5, 1243))
    assert (code, out["data"]["verdict"]) == (0, "PASS") and "5 empty" in text


@pytest.mark.parametrize(
    ("rows", "finding"),
    [
        pytest.param(samples(0, 1243)[:-1], "SAMPLES_MISSING", id="one document missing"),
        pytest.param(samples(0, 1243, ids=[0, *range(1318)]), "SAMPLES_DUPLICATE", id="one document twice"),
        pytest.param(samples(0, 1200), "SAMPLES_FOREIGN", id="samples of another run"),
        pytest.param(
            [{**r, "filter": "strict-match"} for r in samples(0, 1243)], "SAMPLES_FILTER", id="another filter"
        ),
        pytest.param(
            [{**r, "resps": [[None]]} if r["doc_id"] == 1318 else r for r in samples(0, 1243)],
            "EVAL_NO_RESPONSE",
            id="one None",
        ),
    ],
)
def test_samples_that_cannot_stand_for_the_result_are_no_evidence(
    tmp_path: Path, rows: list[dict[str, Any]], finding: str
) -> None:
    code, out, _ = gate(tmp_path, result(), rows)
    assert code == 5 and finding in [f["code"] for f in out["findings"]]


RUN = {"run_id": "r1", "server_started": 1786500000, "client_exit": 0, "results_dir": "."}


@pytest.mark.parametrize(
    ("patch", "finding"),
    [
        pytest.param({}, None, id="good"),
        pytest.param({"client_exit": 1}, "CLIENT_FAILED", id="client failed"),
        pytest.param({"server_started": 1786503700}, "RESULT_STALE", id="server started after the result"),
        pytest.param({"results_dir": "other"}, "RESULT_FOREIGN", id="another run's folder"),
        pytest.param({"server_started_at_end": 1786503800}, "SERVER_RESTARTED", id="restarted within the run"),
        pytest.param({"image_created": 1786503700}, "RESULT_OLDER_THAN_IMAGE", id="older than the image"),
        pytest.param(
            {"requests": {"total": 1319, "failed": 20, "retried": 20}}, "TRANSPORT_ERRORS", id="lost requests"
        ),
        pytest.param(
            {"requests": {"total": 1319, "failed": 0, "retried": 200}}, "TRANSPORT_RETRIES", id="many retries"
        ),
    ],
)
def test_the_run_record_decides_whether_the_result_counts(
    tmp_path: Path, patch: dict[str, Any], finding: str | None
) -> None:
    code, out, _ = gate(tmp_path, result(), run={**RUN, **patch})
    assert code == (5 if finding else 0)
    assert finding is None or finding in [f["code"] for f in out["findings"]]


def test_a_typo_in_the_policy_is_refused_with_the_nearest_key(tmp_path: Path) -> None:
    code, out, _ = gate(tmp_path, result(), max_emtpy_rate=0.01)
    assert code == 2 and "'max_empty_rate'" in out["findings"][0]["what"]
