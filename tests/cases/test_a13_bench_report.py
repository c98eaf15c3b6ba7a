"""Case A13 of shared/cases/README.md and further inputs of its kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = {
    "backend": "openai",
    "num_prompts": 2048,
    "completed": 2048,
    "max_concurrency": 256,
    "input_len": 8192,
    "output_len": 1024,
    "total_output_tokens": 2097152,
    "total_token_throughput": 30500.0,
    "mean_tpot_ms": 58.7,
    "mean_ttft_ms": 0.0,
    "p99_ttft_ms": 0.0,
    "mean_itl_ms": 0.0,
}
DIGEST = "sha256:" + "1" * 64
MEASURED = {
    "mean_ttft_ms": 812.4,
    "p99_ttft_ms": 1900.0,
    "mean_itl_ms": 57.9,
    "image_digest": DIGEST,
    "args": {"tp": 8},
}


def report(tmp_path: Path, bench: dict[str, Any], gate: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    (tmp_path / "b.json").write_text(json.dumps(bench))
    argv = [sys.executable, "-m", "megamoe", "bench-report", "b.json", "--json"]
    if gate is not None:
        (tmp_path / "g.json").write_text(json.dumps(gate))
        argv += ["--gate", "g.json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout)


def test_a13_zero_latencies_are_invalid_and_the_rest_is_diagnostic_only(tmp_path: Path) -> None:
    code, out = report(tmp_path, BENCH)
    figures = out["data"]["figures"]
    assert code == 0 and out["data"]["label"] == "diagnostic-only" and out["data"]["may_be_ranked"] is False
    assert figures["total_token_throughput"]["value"] == 30500.0 and figures["mean_tpot_ms"]["value"] == 58.7
    for key in ("mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms"):
        assert figures[key]["label"] == "invalid" and "value" not in figures[key]
    assert out["data"]["effective_concurrency_per_rank"] == 32


def test_a13_twin_measured_latencies_and_a_pass_make_a_normal_report(tmp_path: Path) -> None:
    gate = {"status": "pass", "data": {"verdict": "PASS", "image_digest": DIGEST, "args": {"tp": 8}}}
    code, out = report(tmp_path, {**BENCH, **MEASURED}, gate)
    assert (code, out["status"], out["data"]["label"], out["data"]["may_be_ranked"]) == (0, "pass", "normal", True)


@pytest.mark.parametrize(
    "proof",
    [
        pytest.param({"verdict": "FAIL", "image_digest": DIGEST, "args": {"tp": 8}}, id="gate failed"),
        pytest.param({"verdict": "PASS", "image_digest": "sha256:" + "2" * 64, "args": {"tp": 8}}, id="another digest"),
        pytest.param({"verdict": "PASS", "image_digest": DIGEST, "args": {"tp": 4}}, id="other arguments"),
        pytest.param({"verdict": "PASS"}, id="digest not named"),
    ],
)
def test_a_proof_of_something_else_is_no_proof(tmp_path: Path, proof: dict[str, Any]) -> None:
    _, out = report(tmp_path, {**BENCH, **MEASURED}, {"data": proof})
    assert out["data"]["label"] == "diagnostic-only"


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param({"completed": 2000}, id="requests failed"),
        pytest.param({"total_output_tokens": 2048}, id="short answers"),
        pytest.param({"cache_hit_rate": 0.4}, id="warm prefix cache"),
    ],
)
def test_a_benchmark_that_did_not_do_its_work_counts_for_nothing(tmp_path: Path, patch: dict[str, Any]) -> None:
    code, out = report(tmp_path, {**BENCH, **MEASURED, **patch})
    assert code == 5 and out["data"]["label"] == "invalid"


@pytest.mark.parametrize("patch", [{"completed": "2048"}, {"num_prompts": None}])
def test_a_count_that_is_no_number_is_named(tmp_path: Path, patch: dict[str, Any]) -> None:
    code, out = report(tmp_path, {**BENCH, **MEASURED, **patch})
    assert (code, out["findings"][0]["code"]) == (5, "COUNT_NOT_A_NUMBER") and next(iter(patch)) in str(out["findings"])


@pytest.mark.parametrize(
    ("rate", "said"),
    [pytest.param(39000.0, False, id="256 / 58.7 ms x 9"), pytest.param(50000.0, True, id="more than they can make")],
)
def test_figures_that_contradict_each_other_are_never_ranked(tmp_path: Path, rate: float, said: bool) -> None:
    _, out = report(tmp_path, {**BENCH, **MEASURED, "total_token_throughput": rate})
    assert ("FIGURES_CONTRADICT" in [f["code"] for f in out["findings"]]) is said


@pytest.mark.parametrize(
    ("value", "word"),
    [
        pytest.param(0.0, "exactly zero", id="zero"),
        pytest.param(-3.0, "-3.0", id="negative"),
        pytest.param(None, "None", id="null"),
        pytest.param("12 ms", "12 ms", id="text"),
        pytest.param(float("nan"), "NaN", id="not a number"),
    ],
)
def test_a_latency_that_no_clock_gave_is_invalid_and_says_why(tmp_path: Path, value: Any, word: str) -> None:
    code, out = report(tmp_path, {**BENCH, **MEASURED, "mean_ttft_ms": value})
    figure = out["data"]["figures"]["mean_ttft_ms"]
    assert code == 0 and figure["label"] == "invalid" and word in figure["why"] and "value" not in figure
    assert out["data"]["figures"]["mean_itl_ms"]["label"] == "shown" and out["data"]["may_be_ranked"] is False


PROOF = {"data": {"verdict": "PASS", "image_digest": DIGEST, "args": {"tp": 8}}}


@pytest.mark.parametrize(
    ("patch", "per_rank", "code"),
    [
        pytest.param({"max_concurrency": 4096, "max_num_seqs": 64}, 64, "CONCURRENCY_CAPPED", id="capped by server"),
        pytest.param({"num_prompts": 64, "completed": 64, "total_output_tokens": 65536}, 8, "CONCURRENCY_NOT_REACHED",
                     id="too few prompts"),
    ],
)  # fmt: skip
def test_the_effective_concurrency_is_what_the_ranks_really_got(
    tmp_path: Path, patch: dict[str, Any], per_rank: float, code: str
) -> None:
    _, out = report(tmp_path, {**BENCH, **MEASURED, **patch}, PROOF)
    assert out["data"]["effective_concurrency_per_rank"] == per_rank and code in [f["code"] for f in out["findings"]]


def test_two_spellings_of_one_image_are_one_image(tmp_path: Path) -> None:
    _, out = report(tmp_path, {**BENCH, **MEASURED, "image_digest": f"registry.example/moe@{DIGEST}"}, PROOF)
    assert out["data"]["label"] == "normal"


def test_without_arguments_on_either_side_nothing_is_ranked(tmp_path: Path) -> None:
    bench = {k: v for k, v in {**BENCH, **MEASURED}.items() if k != "args"}
    _, out = report(tmp_path, bench, {"data": {"verdict": "PASS", "image_digest": DIGEST}})
    assert out["data"]["may_be_ranked"] is False and "ARGS_UNKNOWN" in [f["code"] for f in out["findings"]]


def test_forced_balance_is_said_and_never_ranked(tmp_path: Path) -> None:
    _, out = report(tmp_path, {**BENCH, **MEASURED, "env": {"ATOM_FAKE_EPLB": "1"}}, PROOF)
    assert out["data"]["label"] == "diagnostic-only" and "ROUTING_BALANCED" in [f["code"] for f in out["findings"]]


def test_failed_requests_beside_a_full_count_are_failed_requests(tmp_path: Path) -> None:
    code, _ = report(tmp_path, {**BENCH, **MEASURED, "failed": 3}, PROOF)
    assert code == 5
