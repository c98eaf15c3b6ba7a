"""Evidence of the adapter, from its folder, a command that prints it or a file that keeps it, and what it proves.

The form of the evidence is megamoe_atom.status; nothing here knows it a second time. A command (for instance
`docker exec moe megamoe status --json`) prints one envelope, a list, or one object per line; a file holds such output.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem
from megamoe_atom.status import RankStatus, parse_status, read_status_dir

from megamoe.text_input import load_json


def read_status(folder: str | None, command: str | None) -> list[RankStatus]:
    """Evidence by rank. Raises Problem when the source cannot be read (exit 3) or is no evidence (exit 5)."""
    return read_status_dir(Path(folder)) if folder else _from_command(command or "")


def read_status_file(path: str) -> list[RankStatus]:
    """Saved output of `megamoe status --json`. Raises Problem as load_json, or when it is no evidence (exit 5)."""
    return _parse(load_json(path), path)


def summary_of(ranks: list[RankStatus]) -> dict[str, dict[str, Any]]:
    """What a run record keeps of each rank: its process, its launches, its edits."""
    return {
        str(s.rank): {"pid": s.pid, "started_at": s.started_at, "launches": s.launches, "edits_hash": s.edits_hash}
        for s in ranks
    }


def _from_command(command: str) -> list[RankStatus]:
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=60, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Problem(
            "status_command",
            what=f"{command!r} did not run: {error}",
            why="it was to print the evidence",
            fix="run it by hand",
            exit_code=Exit.UNREACHABLE,
        ) from None
    try:
        body: Any = json.loads(done.stdout)
    except json.JSONDecodeError:
        try:
            body = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
        except json.JSONDecodeError:
            raise Problem(
                "status_command",
                what=f"{command!r} ended with {done.returncode} and printed no JSON: "
                f"{(done.stderr or done.stdout)[:120]!r}",
                why="it was to print the evidence",
                fix="run it by hand",
                exit_code=Exit.UNREACHABLE,
            ) from None
    return _parse(body, f"what {command!r} printed")


def _parse(body: Any, where: str) -> list[RankStatus]:
    if isinstance(body, dict):
        data = body.get("data") if "schema_version" in body else None
        body = data.get("ranks", [body]) if isinstance(data, dict) else [body]
    if not isinstance(body, list):
        body = [body]  # parse_status says what is wrong with it
    ranks = sorted((parse_status(entry, where) for entry in body), key=lambda s: s.rank)
    numbers = [s.rank for s in ranks]
    if len(set(numbers)) != len(numbers):
        raise Problem(
            "status_file",
            what=f"{where} holds two entries of one rank (ranks {numbers})",
            why="each rank leaves one, so this is a mixture",
            fix="empty the evidence folder and start the server again",
            exit_code=Exit.NO_EVIDENCE,
        )
    return ranks


def judge_evidence(ranks: list[RankStatus]) -> list[str]:
    """What speaks against calling the fused path active; empty when nothing does."""
    if not ranks:
        return ["no rank has written evidence"]
    against = []
    present, expected = {s.rank for s in ranks}, set(range(max(s.ep_size for s in ranks)))
    if missing := sorted(expected - present):
        against.append(f"ranks {missing} of {len(expected)} have written none")
    if foreign := sorted(present - expected):
        against.append(f"ranks {foreign} do not belong to a group of {len(expected)}: left by another start")
    if len({s.ep_size for s in ranks}) > 1:
        against.append(f"the ranks name different group sizes: {sorted({s.ep_size for s in ranks})}")
    layers = {tuple(sorted(s.layers_converted)) for s in ranks}
    if len(layers) > 1 or () in layers:
        counts = {s.rank: len(s.layers_converted) for s in ranks}
        against.append(f"the ranks do not agree on their fused layers, or have none (rank: layers) {counts}")
    for s in ranks:
        if s.selftest_state != "passed":
            against.append(f"rank {s.rank}: its start-up self-test is {s.selftest_state!r}, not passed")
        if silent := [name for name in s.layers_converted if not s.launches_per_layer.get(name)]:
            shown = ", ".join(silent[:5])
            against.append(f"rank {s.rank}: {len(silent)} of {len(s.layers_converted)} layers never ran fused: {shown}")
        if not s.launches:
            against.append(f"rank {s.rank}: the fused path has not run")
    return against
