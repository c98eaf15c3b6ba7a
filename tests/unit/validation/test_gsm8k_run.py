"""`megamoe gsm8k` and the gate against a small server in this process. Needs lm-eval's environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer
from megamoe.gsm8k.run import harness_python
from megamoe_atom.problem import Problem

ROOT = Path(__file__).resolve().parents[3]
CANARY = "sk-canary-0123456789"


def _have_harness() -> bool:
    try:
        return bool(harness_python())
    except Problem:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not _have_harness(), reason="lm-eval has no environment here: scripts/setup_lm_eval.sh makes it"
    ),
]


@pytest.fixture
def questions(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    rows = [
        {
            "question": f"Ann has {i} pears and buys {i + 3} more. How many has she?",
            "answer": f"{i} + {i + 3}\n#### {2 * i + 3}",
        }
        for i in range(2, 122)
    ]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path, {r["question"]: r["answer"] for r in rows}


def megamoe(*argv: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "megamoe", *argv, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "MEGAMOE_API_KEY": CANARY},
    )
    return done.returncode, json.loads(done.stdout), done.stdout + done.stderr


def validate(server: FakeServer, questions: Path, out: Path, **policy: Any) -> tuple[int, dict[str, Any], str]:
    rules = {
        "task": "gsm8k",
        "metric": "exact_match,flexible-extract",
        "floor": 0.6,
        "n_required": 120,
        "num_fewshot": 3,
        **policy,
    }
    path = out.parent / "policy.json"
    path.write_text(json.dumps(rules))
    _, ran, text = megamoe(
        "gsm8k", server.url, "--dataset", str(questions), "--out", str(out), "--policy", str(path), "--concurrency", "8"
    )
    code, verdict, more = megamoe("gate", "--policy", str(path), "--result", str(out), "--run", str(out / "run.json"))
    return code, {"gsm8k": ran, **verdict}, text + more


def test_a_good_server_passes_and_the_key_is_nowhere(tmp_path: Path, questions: tuple[Path, dict[str, str]]) -> None:
    server = FakeServer(questions[1])
    code, out, text = validate(server, questions[0], tmp_path / "run")
    assert (code, out["data"]["verdict"], out["data"]["n"]) == (0, "PASS", 120)
    assert server.seen_keys == {f"Bearer {CANARY}"} and CANARY not in text
    kept = [p for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert kept and not any(CANARY.encode() in p.read_bytes() for p in kept)


def test_a_broken_model_fails_within_a_hundred_questions(
    tmp_path: Path, questions: tuple[Path, dict[str, str]]
) -> None:
    server = FakeServer(questions[1], "garbage")
    code, out, _ = validate(server, questions[0], tmp_path / "run")
    assert (code, out["data"]["verdict"]) == (1, "FAIL")
    assert out["data"]["early_fail"]["answers"] <= 100 and server.asked <= 100


def test_sixteen_percent_empty_answers_are_no_evidence(tmp_path: Path, questions: tuple[Path, dict[str, str]]) -> None:
    code, out, _ = validate(FakeServer(questions[1], "empty_16"), questions[0], tmp_path / "run")
    assert code == 5 and "EVAL_EMPTY" in [f["code"] for f in out["findings"]]


@pytest.mark.parametrize(
    ("fault", "cause", "allowed", "code"),
    [
        pytest.param("drop_2", "HTTP 502", 0.03, 0, id="502, policy allows 3 %"),
        pytest.param("parts_2", "answer is not a completion", 0.03, 0, id="text that is none, policy allows 3 %"),
        pytest.param("cut_2", "ServerDisconnectedError", 0.005, 5, id="cut connections, policy allows 0.5 %"),
    ],
)
def test_a_proxy_that_drops_two_percent_is_counted_and_judged(
    tmp_path: Path, questions: tuple[Path, dict[str, str]], fault: str, cause: str, allowed: float, code: int
) -> None:
    found, out, _ = validate(FakeServer(questions[1], fault), questions[0], tmp_path / "run", max_retry_rate=allowed)
    assert found == code and "TRANSPORT_RETRIES" in [f["code"] for f in out["findings"]]
    requests = out["data"]["requests"]
    assert requests["retried"] == 2 and requests["causes"] == {cause: 2}


def test_a_server_restarted_within_the_run_is_no_evidence(
    tmp_path: Path, questions: tuple[Path, dict[str, str]]
) -> None:
    first = FakeServer(questions[1], "slow")
    port = first.server_address[1]

    def restart() -> None:
        while first.asked < 20:
            time.sleep(0.02)
        first.stop()
        time.sleep(1.0)
        again = FakeServer(questions[1], port=port)
        again.started = first.started + 100

    threading.Thread(target=restart, daemon=True).start()
    code, out, _ = validate(first, questions[0], tmp_path / "run")
    assert code == 5 and "SERVER_RESTARTED" in [f["code"] for f in out["findings"]]


def test_an_unfinished_run_is_resumed_and_asks_only_what_is_missing(
    tmp_path: Path, questions: tuple[Path, dict[str, str]]
) -> None:
    server = FakeServer(questions[1])
    validate(server, questions[0], tmp_path / "run")
    record = json.loads((tmp_path / "run/run.json").read_text())
    lines = (tmp_path / "run/journal.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run/journal.jsonl").write_text("".join(lines[:50]) + lines[50][:20])  # cut in the middle of a line
    (tmp_path / "run/run.json").write_text(json.dumps({**record, "status": "partial"}))
    server.asked = 0
    code, out, _ = validate(server, questions[0], tmp_path / "run")
    assert (code, server.asked, out["data"]["run_id"]) == (0, 70, record["run_id"])


def test_an_interrupted_run_is_kept_and_marked_partial(tmp_path: Path, questions: tuple[Path, dict[str, str]]) -> None:
    server = FakeServer(questions[1], "slow")
    out = tmp_path / "run"
    policy = tmp_path / "p.json"
    rules = {
        "task": "gsm8k",
        "metric": "exact_match,flexible-extract",
        "floor": 0.6,
        "n_required": 120,
        "num_fewshot": 3,
    }
    policy.write_text(json.dumps(rules))
    child = subprocess.Popen(
        [sys.executable, "-m", "megamoe", "gsm8k", server.url, "--dataset", str(questions[0]), "--out", str(out),
         "--policy", str(policy), "--concurrency", "4", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        # a test run in the background has SIGINT ignored, and its children would, too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while server.asked < 30:
        time.sleep(0.05)
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 130 and json.loads(said)["status"] == "error"
    assert json.loads((out / "run.json").read_text())["status"] == "partial"
    assert len((out / "journal.jsonl").read_text().splitlines()) >= 20
    code, verdict, _ = megamoe("gate", "--policy", str(policy), "--result", str(out), "--run", str(out / "run.json"))
    assert code == 5 and "RUN_PARTIAL" in [f["code"] for f in verdict["findings"]]


def test_validate_runs_all_four_steps_and_ends_with_one_code(
    tmp_path: Path, questions: tuple[Path, dict[str, str]]
) -> None:
    policy = tmp_path / "p.json"
    rules = {
        "task": "gsm8k",
        "metric": "exact_match,flexible-extract",
        "floor": 0.6,
        "n_required": 120,
        "num_fewshot": 3,
    }
    policy.write_text(json.dumps(rules))
    out = tmp_path / "out"
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/validate.sh"), FakeServer(questions[1]).url, "--dataset", str(questions[0]),
         "--policy", str(policy), "--out", str(out), "--concurrency", "8", "--max-model-len", "9472"],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads((out / "report.json").read_text())
    assert [s["command"] for s in said["sections"]] == ["smoke", "gsm8k", "gate"] and said["status"] == "warn"
    assert said["provenance"]["command"][:2] == ["megamoe", "gsm8k"] and said["provenance"]["dataset_sha256"]
    assert (out / "junit.xml").exists() and (out / "report.md").exists() and "gate: pass" in done.stdout
