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
    "args",
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
    partial: str = ""  # why the run is not complete, empty when it is


def build(envelopes: list[str], run_dir: str | None, title: str, facts: str | None = None) -> Report:
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
    if report.provenance or facts:
        _add_provenance(report, load_json(facts) if facts else None)
    return report


def _add_provenance(report: Report, facts: Any) -> None:
    """What the run record cannot know: commits and edits from smoke's envelope, hardware from host facts."""
    known = report.provenance
    smoke = next((s.get("data") or {} for s in report.sections if s["command"] == "smoke"), {})
    labels = smoke.get("labels") or {}
    commits = {key.split(".")[2]: value for key, value in labels.items() if key.endswith(".commit")}
    commits = commits or smoke.get("stack") or {}
    found = {
        "commits": {**commits, **(smoke.get("versions") or {})} or None,
        "edits_hash": smoke.get("edits_hash") or labels.get("io.megamoe.edits.sha256"),
        "image_digest": next(iter(smoke.get("image_digests") or []), None),
        "hardware": _hardware(facts) if isinstance(facts, dict) else None,
    }
    for key, value in found.items():
        if known.get(key) is None:
            known[key] = value
    report.provenance = {key: known.get(key) for key in _PROVENANCE}


def _hardware(facts: dict[str, Any]) -> str | None:
    """One line of the host's facts (`megamoe preflight` names the keys); None when they name no GPU."""
    gpus = [g for g in facts.get("gpus") or [] if isinstance(g, dict)]
    if not gpus:
        return None
    archs = sorted({str(g["arch"]) for g in gpus if g.get("arch")} or set(map(str, facts.get("archs") or [])))
    sizes = sorted({g["vram_total_mb"] for g in gpus if isinstance(g.get("vram_total_mb"), (int, float))})
    words = [f"{len(gpus)} GPUs", *archs, *(f"{size:g} MiB each" for size in sizes)]
    return ", ".join(words)


def _read_run(folder: Path, report: Report) -> None:
    record = load_json(folder / "run.json")
    report.provenance = {k: record.get(k) for k in _PROVENANCE}
    if record.get("status") not in (None, "complete"):
        report.partial = f"the run is {record['status']}: its answers are kept, and no score is computed from them"
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
        kept = marks[::step] + (marks[-1:] if (len(marks) - 1) % step else [])
        report.running = [round(x, 4) for x in kept]
    journal = folder / "journal.jsonl"
    if journal.exists():
        from megamoe.gate.evidence import load_samples

        report.seconds = sorted(float(r["seconds"]) for r in load_samples(journal) if "seconds" in r)
