"""The gates against the CPU reference engine with real weights: the good path passes, each planted fault is refused.

Minutes of CPU, so marked `engine`; `make rehearse` (or `megamoe rehearse`) makes the model directory once.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from lossy_proxy import LossyProxy

ROOT = Path(__file__).resolve().parents[2]
MODEL = Path(os.environ.get("MEGAMOE_REHEARSAL_MODEL", ROOT / ".state/model"))
DATA = ROOT / "tests/rehearsal/data"
POLICY = ROOT / "scripts/megamoe/policies/rehearsal.toml"
READY_S = 900  # 60 s on two idle cores; a loaded machine takes many times that
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason=f"{MODEL} is missing: make rehearse makes it"),
]
# As the rehearsal serves it, but for smaller steps: self-test and warm-up take as long as a step has tokens.
MEGA = ["-tp", "2", "--enable-dp-attention", "--enable-expert-parallel", "--max-num-batched-tokens", "64"]
DENSE = ["--moe-backend", "standard", "--max-num-batched-tokens", "64"]


class Engine:
    """One engine process of ours."""

    def __init__(self, folder: Path, flags: list[str], port: int = 0, **environment: str) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = port or int(sock.getsockname()[1])
        self.url, self.log, self.status = f"http://127.0.0.1:{self.port}", folder / "log", folder / "status"
        fused = {} if flags is DENSE else {"ATOM_USE_FLYDSL": "1", "ATOM_USE_FLYDSL_FUSED": "1"}
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "reference_engine", "--model", str(MODEL), "--host", "127.0.0.1",
                    "--server-port", str(self.port), "--max-num-seqs", "8", "--max-model-len", "2048", *flags,
                ],
                stderr=file,
                env={**os.environ, **fused, "MEGAMOE_STATUS_DIR": str(self.status), **environment},
            )  # fmt: skip

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(1)
        pytest.fail(f"not ready after {READY_S} s: {self.log.read_text()[-2000:]}")

    def wait_for(self, word: str) -> None:
        deadline = time.monotonic() + READY_S
        while word not in self.log.read_text():
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
            time.sleep(1)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    running: list[Engine] = []

    def launch(flags: list[str] = MEGA, port: int = 0, **environment: str) -> Engine:
        folder = tmp_path / f"engine{len(running)}"
        folder.mkdir()
        running.append(Engine(folder, flags, port, **environment))
        return running[-1]

    yield launch
    for engine in running:
        engine.stop()


def megamoe(*argv: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "megamoe", *argv, "--json"], capture_output=True, text=True, timeout=1500
    )
    return done.returncode, json.loads(done.stdout)


def ask(engine: Engine | LossyProxy, out: Path, *more: str) -> tuple[int, dict[str, Any]]:
    return megamoe(
        "gsm8k", engine.url, "--dataset", str(DATA / "easy_sums.jsonl"), "--fewshot", str(DATA / "easy_fewshot.jsonl"),
        "--policy", "rehearsal", "--concurrency", "8", "--max-gen-toks", "64", "--out", str(out),
        *more,
    )  # fmt: skip


def gate(out: Path, baseline: Path, policy: str = "rehearsal") -> tuple[int, dict[str, Any]]:
    return megamoe(
        "gate", "--policy", policy, "--result", str(out), "--run", str(out / "run.json"),
        "--baseline", str(baseline),
    )  # fmt: skip


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine on the quick path, for the baseline and for the faults that sit outside the engine."""
    engine = Engine(tmp_path_factory.mktemp("dense"), DENSE)
    try:
        engine.wait_ready()
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def baseline(dense: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dense path's answers, asked once."""
    run = tmp_path_factory.mktemp("baseline") / "run"
    code, out = ask(dense, run)
    assert code == 0, out
    return run


def test_the_good_image_passes_smoke_and_gate(start: Callable[..., Engine], tmp_path: Path, baseline: Path) -> None:
    engine = start()
    engine.wait_ready()
    code, smoke = megamoe("smoke", engine.url, "--status-dir", str(engine.status))
    assert code == 0 and smoke["data"]["fused_path_active"] is True, smoke["summary"]
    ask(engine, tmp_path / "run")
    code, verdict = gate(tmp_path / "run", baseline)
    assert (code, verdict["data"]["verdict"]) == (0, "PASS"), verdict["summary"]


@pytest.mark.parametrize("fault", ["gate_up_mispaired", "expert_zeroed"])
def test_a_wrong_weight_layout_fails_the_gate_within_a_hundred_questions(
    start: Callable[..., Engine], tmp_path: Path, baseline: Path, fault: str
) -> None:
    # The self-test would stop the start; here the accuracy gate alone has to find it.
    engine = start(MEGAMOE_REHEARSAL_FAULT=fault, MEGAMOE_SELFTEST="off")
    engine.wait_ready()
    ask(engine, tmp_path / "run")
    code, verdict = gate(tmp_path / "run", baseline)
    asked = json.loads((tmp_path / "run/run.json").read_text())["requests"]["total"]
    assert (code, verdict["data"]["verdict"]) == (1, "FAIL"), verdict["summary"]
    assert asked <= 100


@pytest.mark.parametrize("fault", ["gate_up_mispaired", "expert_zeroed"])
def test_the_self_test_stops_the_start_of_a_wrong_layout(start: Callable[..., Engine], fault: str) -> None:
    engine = start(MEGAMOE_REHEARSAL_FAULT=fault)
    assert engine.process.wait(timeout=READY_S) != 0
    assert "selftest" in engine.log.read_text()


def test_answers_of_5xx_are_counted_and_refused(start: Callable[..., Engine], tmp_path: Path, baseline: Path) -> None:
    engine = start(DENSE, MEGAMOE_REHEARSAL_FAULT="http_5xx")  # the fault sits in the HTTP side: the quick path will do
    engine.wait_ready()
    ask(engine, tmp_path / "run")
    code, verdict = gate(tmp_path / "run", baseline)
    assert code == 5 and "TRANSPORT_RETRIES" in [f["code"] for f in verdict["findings"]], verdict["summary"]
    assert set(verdict["data"]["requests"]["causes"]) == {"HTTP 500"}


def test_an_engine_that_never_gets_ready_is_unreachable(start: Callable[..., Engine]) -> None:
    engine = start(DENSE, MEGAMOE_REHEARSAL_FAULT="never_ready")
    engine.wait_for("the port stays closed")
    code, out = megamoe("smoke", engine.url)
    assert (code, out["status"]) == (3, "error")


def test_a_server_that_answers_empty_to_sixteen_percent_is_no_evidence(
    dense: Engine, tmp_path: Path, baseline: Path
) -> None:
    proxy = LossyProxy(dense.url, "empty", every=6)
    ask(proxy, tmp_path / "run")
    code, verdict = gate(tmp_path / "run", baseline)
    assert proxy.spoiled == 10  # of 64: 15.6 %
    assert (code, verdict["data"]["verdict"]) == (5, "INVALID"), verdict["summary"]
    assert "EVAL_EMPTY" in [f["code"] for f in verdict["findings"]]
    assert verdict["data"]["answers"]["empty"] == 10


def test_a_proxy_that_drops_two_percent_is_counted_and_judged_by_the_policy(
    dense: Engine, tmp_path: Path, baseline: Path
) -> None:
    proxy = LossyProxy(dense.url, "drop", every=50)
    ask(proxy, tmp_path / "run")
    code, verdict = gate(tmp_path / "run", baseline)
    said = {f["code"]: f["severity"] for f in verdict["findings"]}
    assert (code, verdict["data"]["verdict"], said.get("TRANSPORT_RETRIES")) == (0, "PASS", "warn"), verdict["summary"]
    requests = verdict["data"]["requests"]
    assert (requests["retried"], requests["failed"], proxy.spoiled) == (1, 0, 1)
    assert requests["causes"] == {"ServerDisconnectedError": 1}
    strict = tmp_path / "strict.toml"
    strict.write_text(POLICY.read_text() + "max_retry_rate = 0.01\n")
    code, verdict = gate(tmp_path / "run", baseline, str(strict))
    assert code == 5 and "TRANSPORT_RETRIES" in [f["code"] for f in verdict["findings"]], verdict["summary"]


def test_a_server_restarted_within_the_run_is_no_evidence(
    start: Callable[..., Engine], tmp_path: Path, baseline: Path
) -> None:
    first = start(DENSE)
    first.wait_ready()

    def restart() -> None:
        journal = tmp_path / "run" / "journal.jsonl"
        while not journal.exists() or journal.read_text().count("\n") < 8:
            time.sleep(0.5)
        first.stop()
        start(DENSE, port=first.port)

    thread = threading.Thread(target=restart, daemon=True)
    thread.start()
    ask(first, tmp_path / "run", "--max-retries", "50")  # patient enough to meet the second server
    thread.join(timeout=READY_S)
    code, verdict = gate(tmp_path / "run", baseline)
    assert (code, verdict["data"]["verdict"]) == (5, "INVALID"), verdict["summary"]
    assert "SERVER_RESTARTED" in [f["code"] for f in verdict["findings"]]
    assert verdict["data"]["requests"]["failed"] == 0  # every question was answered, and it still is no evidence
