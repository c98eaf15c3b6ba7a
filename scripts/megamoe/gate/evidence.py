"""Collects what the gate judges: a result, its samples, the run record and a baseline, each read from disk once.

Formats: lm-evaluation-harness result JSON and sample JSONL (0.4.x), and RUN as in the README ("gate").
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem, Reason

from megamoe.gsm8k.record import epoch
from megamoe.status.read import read_status_file, summary_of
from megamoe.text_input import load_json, read_text

MAX_SAMPLES_BYTES = 512 << 20


@dataclass(slots=True)
class Evidence:
    """As read, not yet judged. `faults` are reasons why there is no evidence (they make the verdict INVALID)."""

    result: dict[str, Any] = field(default_factory=dict)
    result_path: Path | None = None
    samples: list[dict[str, Any]] | None = None
    run: dict[str, Any] | None = None
    faults: list[Reason] = field(default_factory=list)


def load_evidence(result: str, samples: str | None, run: str | None) -> Evidence:
    """Reads the three inputs. A result folder is searched for the files of this run only.

    Raises:
        Problem: a file is missing or unreadable, or is not JSON of the right shape (exit 2 or 3).
    """
    evidence = Evidence()
    if run is not None:
        evidence.run = _mapping(load_json(run), run, "run record")
    path = Path(result)
    if path.is_dir():
        chosen = _own_result(path, evidence, Path(run).parent if run else None)
        if chosen is None:
            return evidence
        path = chosen
    elif evidence.run is not None and path.exists():
        home = _results_dir(evidence.run, Path(run).parent if run else Path())
        if home is not None and not any(path.resolve().is_relative_to(h) for h in home):
            evidence.faults.append(
                Reason(
                    "RESULT_FOREIGN",
                    f"{path} does not lie under this run's folder {evidence.run['results_dir']}",
                    "a file from elsewhere may belong to another run, another image or another day",
                    "give the result that this run wrote, or the run record that belongs to the file",
                )
            )
    try:
        evidence.result = _mapping(load_json(path), str(path), "result")
    except Problem as problem:
        if problem.code != "json_number":
            raise
        evidence.faults.append(
            Reason(
                "SCORE_NOT_A_NUMBER",
                problem.reasons[0].what,
                "a score that is not a number decides nothing",
                "run the evaluation again",
            )
        )
    evidence.result_path = path
    if samples is None and Path(result).is_dir():
        found = sorted(path.parent.glob("samples*.jsonl"))
        samples = str(found[-1]) if found else None
    if samples is not None:
        evidence.samples = load_samples(samples)
    return evidence


def add_watch(evidence: Evidence, before: str | None, after: str | None, started_at_end: str | None) -> None:
    """What somebody with access to the node saw before and after the run, for a client that had none.

    Raises:
        Problem: one of the two evidence files without the other, or no run record that they could belong to (exit 2);
            a file that cannot be read (exit 2 or 3) or is no evidence (exit 5).
    """
    if before is None and after is None and started_at_end is None:
        return
    if (before is None) != (after is None) or evidence.run is None:
        raise Problem(
            "watch_incomplete",
            what=f"--status-before {before}, --status-after {after}, "
            f"{'no' if evidence.run is None else 'a'} run record",
            why="a restart within the run shows only in what was seen before it and after it",
            fix="give both evidence files, and --run",
        )
    if before is not None and after is not None:
        evidence.run["ranks"] = summary_of(read_status_file(before))
        evidence.run["ranks_at_end"] = summary_of(read_status_file(after))
    if started_at_end is not None:
        evidence.run["server_started_at_end"] = epoch(started_at_end, "--server-started-at-end")


def load_run(source: str) -> Evidence:
    """A run folder of `megamoe gsm8k` with its own record, or a samples file alone. Raises Problem as load_evidence."""
    if not Path(source).is_dir():
        return Evidence(samples=load_samples(source))
    record = Path(source) / "run.json"
    return load_evidence(source, None, str(record) if record.exists() else None)


def load_samples(path: str | Path) -> list[dict[str, Any]]:
    """Sample lines as objects. Raises Problem (exit 2) naming the first broken line."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(read_text(path, max_bytes=MAX_SAMPLES_BYTES).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise Problem(
                "samples_line",
                what=f"{path}:{number}: not a JSON object: {line[:80]!r}",
                why="a truncated or mixed-up samples file cannot show which answers were empty",
                fix="give the complete samples file of this run",
            )
        rows.append(row)
    return rows


def _mapping(value: Any, where: str, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Problem(
            "input_shape",
            what=f"{where}: the {what} is a {type(value).__name__}, not a JSON object",
            why="none of its fields can be read",
            fix=f"give the {what} file",
            exit_code=Exit.REFUSED,
        )
    return value


def _results_dir(run: dict[str, Any], run_home: Path) -> list[Path] | None:
    """Where the run's own files may lie: results_dir as given, from the working directory or from RUN's folder."""
    named = run.get("results_dir")
    if not isinstance(named, str) or not named:
        return None
    return list(dict.fromkeys([Path(named).resolve(), (run_home / named).resolve()]))


def _own_result(folder: Path, evidence: Evidence, run_home: Path | None) -> Path | None:
    """The one result in a folder that belongs to this run; otherwise a fault and None."""
    candidates: list[tuple[Path, dict[str, Any]]] = []
    unreadable: list[str] = []
    for path in sorted(folder.rglob("*.json")):
        try:
            body = load_json(path)
        except Problem as problem:
            unreadable.append(problem.reasons[0].what)
            continue
        if isinstance(body, dict) and isinstance(body.get("results"), dict):
            candidates.append((path, body))
    run = evidence.run
    everything = len(candidates)
    why_not = "no result file lies in it"
    if run is not None:
        homes = _results_dir(run, run_home or Path())
        if homes is not None:
            candidates = [c for c in candidates if any(c[0].resolve().is_relative_to(h) for h in homes)]
        run_id = run.get("run_id")
        # Our own results carry their run id; a plain lm-eval result does not, and is judged by folder and age.
        candidates = [c for c in candidates if c[1].get("run_id") in (None, run_id)]
        own = [c for c in candidates if c[1].get("run_id") == run_id]
        candidates = own or candidates
        started = run.get("server_started")
        if isinstance(started, (int, float)) and not isinstance(started, bool):
            fresh = [c for c in candidates if isinstance(c[1].get("date"), (int, float)) and c[1]["date"] >= started]
            if candidates and not fresh:
                evidence.faults.append(
                    Reason(
                        "RESULT_STALE",
                        f"all {len(candidates)} result files of this run in {folder} are older than the "
                        f"server's start ({started:.0f})",
                        "they were measured on an earlier server, maybe another image",
                        "run the evaluation again on the server that is up now",
                    )
                )
                return None
            candidates = fresh
        if everything:
            why_not = f"{everything} result files lie in it, none of them of run {run.get('run_id')!r}"
    if not candidates:
        evidence.faults.append(
            Reason(
                "RESULT_NOT_OF_THIS_RUN" if everything else "RESULT_MISSING",
                f"{folder}: {why_not}" + (f"; unreadable: {unreadable[0]}" if unreadable else ""),
                "yesterday's file, or another run's, says nothing about this one",
                "look at the evaluation client's own output: it did not finish, or wrote elsewhere",
            )
        )
        return None
    if len(candidates) > 1:
        evidence.faults.append(
            Reason(
                "RESULT_AMBIGUOUS",
                f"{folder} holds {len(candidates)} results that could be this run's: "
                + ", ".join(str(c[0].relative_to(folder)) for c in candidates[:4]),
                "taking the newest would be a guess",
                "give the one result file, or a run record with its results_dir",
            )
        )
        return None
    return candidates[0][0]
