"""Smoke against a small server with faults switched on by name, and against evidence files of the adapter's writer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer
from megamoe.smoke import abort, run, tokens
from megamoe.smoke.identity import pinned_commits
from megamoe.smoke.run import Ask, run_smoke
from megamoe.status.read import judge_evidence, read_status
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.status import RankStatus, StatusWriter


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abort, "PATIENCE_S", 1.0)
    monkeypatch.setattr(run, "EVIDENCE_PATIENCE_S", 1.0)


def smoke(server: FakeServer, status_dir: str | None = None, limit: int | None = 9472, **more: Any) -> Any:
    more = {"max_batched": 512, "timeout_s": 10.0, **more}
    return run_smoke(Ask(server.url, status_dir, max_model_len=limit, **more))


def states(outcome: Any) -> dict[str, str]:
    return {c["name"]: c["status"] for c in outcome.data["checks"]}


def detail(outcome: Any, check: str) -> str:
    return str(next(c["detail"] for c in outcome.data["checks"] if c["name"] == check))


def test_a_healthy_server_passes_but_without_evidence_the_fused_path_is_not_called_active() -> None:
    outcome = smoke(FakeServer())
    assert (outcome.status, outcome.exit_code) == ("warn", Exit.PASS)
    assert outcome.data["fused_path_active"] is False and "not proven" in outcome.summary
    assert {name for name, state in states(outcome).items() if state == "not_run"} == {
        "fused path",
        "labels and versions",
    }
    assert set(states(outcome).values()) == {"pass", "not_run"}


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("garbage", "known answer"),
        ("no_chunks", "streaming"),
        ("one_chunk", "streaming"),
        ("buffering_proxy", "streaming"),
        ("wrong_stream_usage", "streaming"),
        ("mixed_up", "concurrency"),
        ("takes_one_more", "token limit"),
        ("bad_is_5xx", "bad input"),
        ("dies_of_bad_input", "bad input"),
        ("keeps_aborted", "abort frees its slot"),
    ],
)
def test_a_fault_fails_the_check_that_is_about_it(fault: str, check: str) -> None:
    outcome = smoke(FakeServer(fault=fault))
    assert outcome.exit_code == Exit.CHECK_FAILED
    assert states(outcome)[check] == "fail"


@pytest.mark.parametrize(("fault", "check"), [("no_stream_usage", "streaming"), ("no_gauge", "abort frees its slot")])
def test_what_a_server_does_not_tell_is_a_warning_and_no_pass(fault: str, check: str) -> None:
    assert states(smoke(FakeServer(fault=fault)))[check] == "warn"


def test_all_streams_are_open_together_before_they_are_dropped() -> None:
    assert f"running requests {abort.STREAMS}, back to 0" in detail(smoke(FakeServer()), "abort frees its slot")


def test_every_bucket_is_asked_once_and_the_limit_from_both_sides() -> None:
    outcome = smoke(FakeServer(), limit=9472)
    assert detail(outcome, "token buckets") == "10 buckets, prompts of 1 to 512 tokens answered"
    assert "9472 tokens in all taken, 9473 refused" in detail(outcome, "token limit")
    assert "more than one step takes" in detail(outcome, "token limit")


def test_words_of_two_tokens_are_corrected_by_the_servers_own_count() -> None:
    outcome = smoke(FakeServer(fault="two_token_word"))
    assert states(outcome)["token buckets"] == "pass" and "1 to 512 tokens" in detail(outcome, "token buckets")


def test_a_first_word_of_two_tokens_leaves_no_bucket_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corrected down to one word, the bucket of two tokens stayed there: one smoke in forty warned for no reason."""
    monkeypatch.setattr(
        tokens, "words", lambda _t, count, kind: (" people" if kind == "bucket 0" else " time") + " time" * (count - 1)
    )
    outcome = smoke(FakeServer(fault="two_token_word"))
    assert states(outcome)["token buckets"] == "pass" and "1 to 512 tokens" in detail(outcome, "token buckets")


def test_prompts_that_a_cache_answered_ran_no_kernel() -> None:
    outcome = smoke(FakeServer(fault="cached"))
    assert states(outcome)["token buckets"] == "warn" and "prefix cache" in detail(outcome, "token buckets")


def test_the_limit_is_read_from_the_refusal_where_the_model_list_does_not_tell_it() -> None:
    outcome = smoke(FakeServer(), limit=None)
    assert states(outcome)["token limit"] == "pass" and "9472 tokens" in detail(outcome, "token limit")


def test_buckets_that_do_not_fit_the_context_are_named_and_not_counted() -> None:
    server = FakeServer()
    server.limit = 200
    outcome = smoke(server, limit=200)
    assert "8 buckets, prompts of 1 to 128" in detail(outcome, "token buckets")
    assert "256, 512 do not fit" in detail(outcome, "token buckets")


def test_a_server_that_stops_answering_ends_the_smoke_instead_of_costing_a_timeout_per_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer()
    begun = time.monotonic()

    def die(target: Any) -> tuple[str, str]:
        server.stop()
        return "pass", "it is gone now"

    monkeypatch.setattr(run, "CHECKS", (("known answer", die), *run.CHECKS[1:]))
    outcome = smoke(server)
    assert outcome.exit_code == Exit.CHECK_FAILED and time.monotonic() - begun < 20
    assert list(states(outcome).values()).count("not_run") >= 7


def test_a_restart_within_the_smoke_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()

    def restart(target: Any) -> tuple[str, str]:
        server.started += 100
        return "pass", ""

    monkeypatch.setattr(run, "CHECKS", (("known answer", restart),))
    assert states(smoke(server))["same server"] == "fail"


@pytest.mark.parametrize(
    ("fault", "code", "exit_code"), [("html", "not_openai", Exit.UNREACHABLE), ("401", "unauthorised", Exit.REFUSED)]
)
def test_what_is_no_openai_server_is_one_clear_error(fault: str, code: str, exit_code: Exit) -> None:
    with pytest.raises(Problem) as caught:
        smoke(FakeServer(fault=fault))
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)


def test_a_model_that_is_not_listed_is_named() -> None:
    with pytest.raises(Problem) as caught:
        smoke(FakeServer(fault="foreign"), model="demo")
    assert caught.value.code == "wrong_model" and "someone-else" in str(caught.value)


@pytest.mark.parametrize(("scheme", "code"), [("http", "unreachable"), ("https", "tls")])
def test_no_server_and_no_tls_are_told_apart(scheme: str, code: str) -> None:
    server = FakeServer()
    url = server.url if scheme == "http" else server.url.replace("http", "https")
    if scheme == "http":
        server.stop()
    with pytest.raises(Problem) as caught:
        run_smoke(Ask(url))
    assert (caught.value.code, caught.value.exit_code) == (code, Exit.UNREACHABLE)


DIGEST = "sha256:" + "1" * 64


def inspection(path: Path, digest: str = DIGEST, **labels: str) -> str:
    named = {"io.megamoe.atom.commit": pinned_commits()["atom"], "io.megamoe.flydsl.commit": pinned_commits()["flydsl"]}
    named |= {"io.megamoe." + key.replace("_", "."): value for key, value in labels.items()}
    path.write_text(json.dumps([{"Image": digest, "Config": {"Labels": {k: v for k, v in named.items() if v}}}]))
    return str(path)


@pytest.mark.parametrize(
    ("labels", "state", "word"),
    [
        pytest.param({}, "pass", "labels read", id="as pinned"),
        pytest.param({"atom_commit": "f" * 40}, "warn", "ffffffffffff", id="another commit"),
        pytest.param({"atom_commit": ""}, "fail", "no image of this recipe", id="no label"),
    ],
)
def test_the_labels_of_the_container_are_judged(tmp_path: Path, labels: dict[str, str], state: str, word: str) -> None:
    outcome = smoke(FakeServer(), inspect=inspection(tmp_path / "i.json", **labels))
    assert states(outcome)["labels and versions"] == state and word in detail(outcome, "labels and versions")


def test_a_container_of_another_image_than_planned_fails(tmp_path: Path) -> None:
    plan = tmp_path / "deploy.yml"
    base = (Path(__file__).resolve().parents[2] / "cases/base.yml").read_text()
    plan.write_text(base)
    assert DIGEST in base
    good = smoke(FakeServer(), inspect=inspection(tmp_path / "i.json"), deploy=str(plan))
    bad = smoke(FakeServer(), inspect=inspection(tmp_path / "i.json", "sha256:" + "3" * 64), deploy=str(plan))
    assert states(good)["labels and versions"] == "pass" and states(bad)["labels and versions"] == "fail"
    assert "3333" in detail(bad, "labels and versions") and "1111" in detail(bad, "labels and versions")


def test_a_broken_stack_lock_fails_its_check_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock.json").write_text("{broken")
    monkeypatch.setattr("megamoe.version.identity.LOCK_PATH", tmp_path / "lock.json")
    outcome = smoke(FakeServer())
    assert states(outcome)["labels and versions"] == "fail" and states(outcome)["known answer"] == "pass"


def during(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Lets something happen within the smoke, after its first look at the evidence and before its checks."""
    (name, check), *rest = run.CHECKS

    def first(target: Any) -> tuple[str, str]:
        act()
        return check(target)

    monkeypatch.setattr(run, "CHECKS", ((name, first), *rest))


def evidence(folder: Path, launches: int, ranks: int = 2, selftest: str = "passed", only: int | None = None) -> None:
    """What the adapter's own writer leaves, so that reader and writer cannot drift apart."""
    for rank in range(ranks if only is None else only):
        status = RankStatus(rank, ranks, {"hidden": 768}, 512, layers_converted=["layers.0", "layers.1"], pid=1)
        status.selftest_state = selftest  # type: ignore[assignment]
        writer = StatusWriter(folder, status)
        for layer in status.layers_converted:
            writer.forward(layer, launches)
        writer.write()


def test_growing_counters_on_every_rank_prove_the_fused_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence(tmp_path, 10)
    during(monkeypatch, lambda: evidence(tmp_path, 20))
    outcome = smoke(FakeServer(), str(tmp_path))
    assert outcome.data["fused_path_active"] is True and outcome.status == "pass"
    assert "all 2 ranks and 2 layers" in detail(outcome, "fused path")


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
    during(monkeypatch, lambda: evidence(tmp_path, **after))
    outcome = smoke(FakeServer(), str(tmp_path))
    assert outcome.exit_code == Exit.NO_EVIDENCE and outcome.data["fused_path_active"] is False


def test_a_layer_that_ran_before_but_not_during_the_smoke_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence(tmp_path, 10)

    def one_layer_only() -> None:
        for rank in range(2):
            ranks = read_status(str(tmp_path), None)
            status = ranks[rank]
            StatusWriter(tmp_path, status, interval_s=0).forward("layers.0", 7)

    during(monkeypatch, one_layer_only)
    outcome = smoke(FakeServer(), str(tmp_path))
    assert outcome.exit_code == Exit.NO_EVIDENCE
    assert "rank 0: 1 layers were not run during the smoke: layers.1" in detail(outcome, "fused path")


@pytest.mark.parametrize("content", [None, "{broken"])
def test_evidence_that_cannot_be_read_is_no_evidence_and_hides_no_other_check(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "rank-0.json").write_text(content)
    outcome = smoke(FakeServer(), str(tmp_path))
    assert outcome.exit_code == Exit.NO_EVIDENCE and states(outcome)["known answer"] == "pass"


def test_ranks_that_run_different_versions_fail(tmp_path: Path) -> None:
    evidence(tmp_path, 3)
    body = json.loads((tmp_path / "rank-1.json").read_text())
    (tmp_path / "rank-1.json").write_text(json.dumps({**body, "versions": {"adapter": "9"}}))
    outcome = smoke(FakeServer(), str(tmp_path))
    assert outcome.exit_code == Exit.CHECK_FAILED and states(outcome)["labels and versions"] == "fail"


def test_launch_counters_that_stop_prove_freed_slots_where_there_is_no_gauge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abort, "PATIENCE_S", 8.0)
    evidence(tmp_path, 10)
    during(monkeypatch, lambda: evidence(tmp_path, 20))
    outcome = smoke(FakeServer(fault="no_gauge"), str(tmp_path))
    assert "launch counters then stand still" in detail(outcome, "abort frees its slot")


def test_a_self_test_that_the_servers_own_environment_switched_off_is_said_and_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence(tmp_path, 10, selftest="off")
    during(monkeypatch, lambda: evidence(tmp_path, 20, selftest="off"))
    outcome = smoke(FakeServer(), str(tmp_path), selftest_off=True)
    assert outcome.exit_code == Exit.PASS and outcome.data["fused_path_active"] is False
    assert states(outcome)["fused path"] == "not_run"


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


def test_the_planned_image_is_compared_and_a_comparison_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    running = inspection(tmp_path / "i.json")
    good = smoke(FakeServer(), inspect=running, image=f"registry.example/moe@{DIGEST}")
    bad = smoke(FakeServer(), inspect=running, image="registry.example/moe@sha256:" + "3" * 64)
    assert [states(o)["labels and versions"] for o in (good, bad)] == ["pass", "fail"]
    for image, inspect in (("registry.example/moe:latest", running), (f"registry.example/moe@{DIGEST}", None)):
        with pytest.raises(Problem) as caught:
            smoke(FakeServer(), inspect=inspect, image=image)
        assert (caught.value.code, caught.value.exit_code) == ("image_not_comparable", Exit.REFUSED)
