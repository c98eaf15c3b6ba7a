"""Reports: identical input gives identical bytes, nothing comes from outside, a server's text is escaped."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from megamoe.report.model import build
from megamoe.report.render import to_html, to_json, to_junit, to_markdown
from megamoe_atom.problem import Exit, Problem

EVIL = "<script>alert(1)</script>\x00"
SAID: dict[str, Any] = {
    "smoke": {
        "seconds": 3.5,
        "fused_path_active": False,
        "labels": {"io.megamoe.atom.commit": "a" * 40},
        "edits_hash": "e" * 64,
        "checks": [
            {"name": "chat", "status": "pass", "detail": EVIL, "seconds": 0.1},
            {"name": "fused path", "status": "not_run", "detail": "no source", "seconds": 0.0},
        ],
    },
    "gate": {
        "verdict": "PASS",
        "score": 0.9424,
        "right": 1243,
        "n": 1319,
        "wilson_95": [0.9285, 0.9538],
        "floor": {"floor": 0.92, "margin_in_stderr": 3.49},
        "reference": {"reference": 0.9424, "p_no_worse": 0.5},
        "answers": {"empty": 5, "failed": 0},
        "paired": {"lost": 9, "gained": 7, "n": 1319, "loss": 0.0015, "loss_this_run_could_find": 0.0085},
    },
    "compare": {"verdict": "FAIL", "flips": [{"flip": "lost", "doc_id": 7, "before": EVIL, "after": "#### 8"}]},
    "bench-report": {
        "label": "diagnostic-only",
        "may_be_ranked": False,
        "ranks": 8,
        "effective_concurrency_per_rank": 32,
        "figures": {
            "mean_ttft_ms": {"label": "invalid", "why": "a latency of exactly zero was not measured"},
            "mean_tpot_ms": {"label": "shown", "value": 58.7},
        },
    },
}


def envelope(folder: Path, command: str, status: str) -> str:
    path = folder / f"{command}-{status}.json"
    finding = {"code": "X", "severity": "warn", "what": EVIL, "why": "y", "fix": "z"}
    body = {"command": command, "status": status, "exit_code": 0, "summary": f"it said {EVIL}", "findings": [finding]}
    path.write_text(json.dumps({"schema_version": 1, **body, "data": SAID[command]}))
    return str(path)


def run_folder(folder: Path, **change: Any) -> str:
    record = {"run_id": "r1", "status": "complete", "image_digest": "sha256:1", "command": ["megamoe", "gsm8k"]}
    (folder / "run.json").write_text(json.dumps({**record, **change}))
    rows = [{"doc_id": i, "filter": "flexible-extract", "exact_match": float(i % 10 > 0)} for i in range(1319)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    answers = [{"doc_id": i, "text": "x", "seconds": 1 + i % 7} for i in range(1319)]
    (folder / "journal.jsonl").write_text("".join(json.dumps(r) + "\n" for r in answers))
    return str(folder)


def all_of(folder: Path) -> list[str]:
    states = {"smoke": "warn", "gate": "pass", "compare": "fail", "bench-report": "warn"}
    return [envelope(folder, command, state) for command, state in states.items()]


def test_identical_input_gives_identical_bytes(tmp_path: Path) -> None:
    sources, run = all_of(tmp_path), run_folder(tmp_path)
    for render in (to_html, to_json, to_junit, to_markdown):
        assert render(build(sources, run, "t")) == render(build(sources, run, "t"))


def test_the_page_is_self_contained_and_escapes_what_a_server_said(tmp_path: Path) -> None:
    page = to_html(build(all_of(tmp_path), run_folder(tmp_path), "t"))
    assert "<script" not in page and "src=" not in page and "<link" not in page and "@import" not in page
    assert "url(" not in page and not re.search(r"https?://", page)
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page
    assert page.count("<svg") == 4  # score, running accuracy, seconds, flips


def test_the_page_shows_the_numbers_that_the_verdict_rests_on(tmp_path: Path) -> None:
    page = to_html(build(all_of(tmp_path), run_folder(tmp_path), "t"))
    for words in (
        "0.9424",
        "1243 of 1319 right",
        "9 / 7",
        "0.9 points",
        "not proven",
        "diagnostic-only",
        "no value",
        "32",
    ):
        assert words in page, words


def test_no_plot_and_no_score_stand_beside_a_verdict_without_evidence(tmp_path: Path) -> None:
    body = {"verdict": "INVALID", "answers": {"empty": 210, "failed": 0}}
    path = tmp_path / "g.json"
    path.write_text(json.dumps({"command": "gate", "status": "invalid", "summary": "210 empty", "data": body}))
    page = to_html(build([str(path)], run_folder(tmp_path), "t"))
    assert "<svg" not in page and 'class="figures"' not in page


def test_the_worst_section_names_the_report_and_junit_never_passes_what_did_not_run(tmp_path: Path) -> None:
    sources = [envelope(tmp_path, "smoke", "pass"), envelope(tmp_path, "smoke", "invalid")]
    report = build(sources, None, "t")
    suite = ET.fromstring(to_junit(report))
    assert report.status == "invalid"
    assert (suite.get("failures"), suite.get("skipped"), suite.get("tests")) == ("1", "2", "6")


def test_provenance_joins_run_record_smoke_and_host_facts(tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps({"gpus": [{"arch": "gfx950", "vram_total_mb": 294896}] * 8}))
    known = build(all_of(tmp_path), run_folder(tmp_path), "t", str(facts)).provenance
    assert known["image_digest"] == "sha256:1" and known["commits"] == {"atom": "a" * 40}
    assert known["edits_hash"] == "e" * 64 and known["hardware"] == "8 GPUs, gfx950, 294896 MiB each"
    page = to_html(build(all_of(tmp_path), run_folder(tmp_path), "t"))
    assert "not recorded" in page  # what nobody told is said to be unknown


def test_a_partial_run_is_marked_partial_in_every_form_for_people(tmp_path: Path) -> None:
    report = build([envelope(tmp_path, "smoke", "pass")], run_folder(tmp_path, status="partial"), "t")
    assert "Partial" in to_html(report) and "Partial" in to_markdown(report) and report.partial in to_json(report)


def test_a_file_that_is_no_envelope_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"results": {}}')
    with pytest.raises(Problem) as caught:
        build([str(path)], None, "t")
    assert caught.value.exit_code == Exit.REFUSED and str(path) in str(caught.value)
