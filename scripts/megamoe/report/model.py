"""What a report says, from saved evidence alone: no clock, no host name, so identical input gives identical bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Problem

from megamoe.text_input import load_json

_PROVENANCE = (
    "run_id",
    "model",
    "url",
    "endpoint",
    "policy",
    "image_digest",
    "image_created",
    "server_started",
    "commits",
    "edits_hash",
    "hardware",
    "command",
    "dataset",
    "dataset_sha256",
    "fewshot_sha256",
    "num_fewshot",
    "max_gen_toks",
    "concurrency",
    "questions",
    "sessions",
    "status",
)
_ORDER = ("error", "fail", "refused", "invalid", "inconclusive", "not_run", "warn", "pass")


@dataclass(slots=True)
class Report:
    title: str
    status: str
    sections: list[dict[str, Any]] = field(default_factory=list)  # envelopes, in the order given
    provenance: dict[str, Any] = field(default_factory=dict)
    running: list[float] = field(default_factory=list)  # running accuracy in document order, thinned
    seconds: list[float] = field(default_factory=list)  # per answer


def build(envelopes: list[str], run_dir: str | None, title: str) -> Report:
    """Raises Problem for a file that is no envelope of megamoe (exit 2) or cannot be read (exit 3)."""
    sections = []
    for path in envelopes:
        body = load_json(path)
        if not isinstance(body, dict) or not {"command", "status", "summary"} <= set(body):
            raise Problem(
                "not_an_envelope",
                what=f"{path} is not the --json output of a megamoe verb",
                why="a report is made of those",
                fix="save the output of smoke, gate, ... --json and give that file",
            )
        sections.append(body)
    states = [str(s["status"]) for s in sections] or ["not_run"]
    status = min(states, key=lambda s: _ORDER.index(s) if s in _ORDER else 0)
    report = Report(title, status, sections)
    if run_dir:
        _read_run(Path(run_dir), report)
    return report


def _read_run(folder: Path, report: Report) -> None:
    record = load_json(folder / "run.json")
    report.provenance = {k: record.get(k) for k in _PROVENANCE}
    samples = folder / "samples.jsonl"
    if samples.exists():
        from megamoe.gate.evidence import load_samples

        rows = [r for r in load_samples(samples) if r.get("filter") == "flexible-extract"]
        right = 0
        marks = []
        for count, row in enumerate(sorted(rows, key=lambda r: r.get("doc_id", 0)), 1):
            right += row.get("exact_match") == 1
            marks.append(right / count)
        step = max(1, len(marks) // 200)
        report.running = [round(x, 4) for x in marks[::step]]
    journal = folder / "journal.jsonl"
    if journal.exists():
        from megamoe.gate.evidence import load_samples

        report.seconds = sorted(float(r["seconds"]) for r in load_samples(journal) if "seconds" in r)
