"""Smoke against a small server in this process: what is healthy passes, each fault is named, evidence decides."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer
from megamoe.smoke.run import run_smoke
from megamoe.status.read import judge_evidence, read_status
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.status import RankStatus, StatusWriter


def smoke(server: FakeServer, status_dir: str | None = None, limit: int | None = 9472) -> Any:
    return run_smoke(server.url, status_dir, None, None, limit, 512, 10.0, None)


def test_a_healthy_server_passes_but_without_evidence_the_fused_path_is_not_called_active() -> None:
    outcome = smoke(FakeServer())
    assert (outcome.status, outcome.exit_code) == ("warn", Exit.PASS)
    assert outcome.data["fused_path_active"] is False and {c["status"] for c in outcome.data["checks"]} == {
        "pass",
        "not_run",
    }


@pytest.mark.parametrize(
    ("fault", "check"), [("garbage", "known answer"), ("no_chunks", "streaming"), ("one_chunk", "streaming")]
)
def test_a_fault_fails_the_check_that_is_about_it(fault: str, check: str) -> None:
    outcome = smoke(FakeServer(fault=fault))
    assert outcome.exit_code == Exit.CHECK_FAILED
    assert check in [c["name"] for c in outcome.data["checks"] if c["status"] == "fail"]


@pytest.mark.parametrize(
    ("fault", "code", "exit_code"), [("html", "not_openai", Exit.UNREACHABLE), ("401", "unauthorised", Exit.REFUSED)]
)
def test_what_is_no_openai_server_is_one_clear_error(fault: str, code: str, exit_code: Exit) -> None:
    with pytest.raises(Problem) as caught:
        smoke(FakeServer(fault=fault))
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)


def test_a_model_that_is_not_listed_is_named() -> None:
    with pytest.raises(Problem) as caught:
        run_smoke(FakeServer(fault="foreign").url, None, None, "demo", None, 512, 5.0, None)
    assert caught.value.code == "wrong_model" and "someone-else" in str(caught.value)


@pytest.mark.parametrize(("scheme", "code"), [("http", "unreachable"), ("https", "tls")])
def test_no_server_and_no_tls_are_told_apart(scheme: str, code: str) -> None:
    server = FakeServer()
    url = server.url if scheme == "http" else server.url.replace("http", "https")
    if scheme == "http":
        server.shutdown()
        server.server_close()
    with pytest.raises(Problem) as caught:
        run_smoke(url, None, None, None, None, 512, 5.0, None)
    assert (caught.value.code, caught.value.exit_code) == (code, Exit.UNREACHABLE)


def evidence(folder: Path, launches: int, ranks: int = 2, selftest: str = "passed", only: int | None = None) -> None:
    """What the adapter's own writer leaves, so that reader and writer cannot drift apart."""
    for rank in range(ranks if only is None else only):
        status = RankStatus(rank, ranks, {"hidden": 768}, 512, layers_converted=["layers.0", "layers.1"], pid=1)
        status.selftest_state = selftest  # type: ignore[assignment]
        writer = StatusWriter(folder, status)
        for layer in status.layers_converted:
            writer.forward(layer, launches)
        writer.write()


def test_growing_counters_on_every_rank_prove_the_fused_path(tmp_path: Path) -> None:
    evidence(tmp_path, 10)
    threading.Timer(0.3, lambda: evidence(tmp_path, 20)).start()
    outcome = smoke(FakeServer(), str(tmp_path))
    assert outcome.data["fused_path_active"] is True and outcome.status == "pass"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"only": 1}, id="one rank silent"),
        pytest.param({"selftest": "off"}, id="self-test off"),
        pytest.param({"launches": 10}, id="counters stand still"),
    ],
)
def test_incomplete_evidence_is_no_evidence(
    tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence(tmp_path, 10, **({"only": change["only"]} if "only" in change else {}))
    after = {"launches": 20, **change}
    threading.Timer(0.3, lambda: evidence(tmp_path, **after)).start()
    began = time.monotonic()
    outcome = smoke(FakeServer(), str(tmp_path))
    assert outcome.exit_code == Exit.NO_EVIDENCE and outcome.data["fused_path_active"] is False
    assert time.monotonic() - began < 30


def test_the_status_verb_and_smoke_judge_one_form_of_evidence(tmp_path: Path) -> None:
    evidence(tmp_path, 3)
    assert judge_evidence(read_status(str(tmp_path), None)) == []
    printed = read_status(None, f"cat {tmp_path / 'rank-0.json'} {tmp_path / 'rank-1.json'}")
    assert printed == read_status(str(tmp_path), None)


def test_a_layer_that_never_ran_and_a_rank_of_another_start_are_named(tmp_path: Path) -> None:
    evidence(tmp_path, 3)
    ranks = read_status(str(tmp_path), None)
    ranks[1].launches_per_layer["layers.1"] = 0
    ranks[0].rank = 7
    against = judge_evidence(ranks)
    assert any("layers.1" in text for text in against) and any("ranks [7]" in text for text in against)
