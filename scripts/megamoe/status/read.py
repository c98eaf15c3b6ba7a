"""Evidence files of the adapter, one `rank-N.json` each, from a folder or from a command that prints them.

Keys read: rank, pid, started_unix_s, updated_unix_s, layers, launches, selftest.status, ep_size or
ranks; others are kept.
A command (for instance `docker exec moe megamoe status --json`) prints one envelope, a list, or one object per line.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit, Problem

from megamoe.text_input import load_json


def read_status(folder: str | None, command: str | None) -> list[dict[str, Any]]:
    """Evidence by rank. Raises Problem when the source cannot be read (exit 3) or is no evidence (exit 5)."""
    found = _from_folder(Path(folder)) if folder else _from_command(command or "")
    bad = [e for e in found if isinstance(e.get("rank"), bool) or not isinstance(e.get("rank"), int)]
    ranks = [e.get("rank") for e in found]
    if bad or len(set(ranks)) != len(ranks):
        raise Problem(
            "evidence_shape",
            what=f"evidence without a rank, or two of one rank (ranks: {ranks})",
            why="each rank writes one file, so this is a mixture",
            fix="empty the folder and start the server again",
            exit_code=Exit.NO_EVIDENCE,
        )
    return sorted(found, key=lambda e: e["rank"])


def _from_folder(folder: Path) -> list[dict[str, Any]]:
    if not folder.is_dir():
        raise Problem(
            "status_dir",
            what=f"{folder} is not a folder",
            why="the adapter writes its evidence there",
            fix="pass the folder that MEGAMOE_STATUS_DIR names",
            exit_code=Exit.UNREACHABLE,
        )
    return [e for e in (load_json(p) for p in sorted(folder.glob("rank*.json"))) if isinstance(e, dict)]


def _from_command(command: str) -> list[dict[str, Any]]:
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
    if isinstance(body, dict):
        body = body.get("data", {}).get("ranks", [body]) if "schema_version" in body and "data" in body else [body]
    return [e for e in body if isinstance(e, dict)]


def launches(entry: dict[str, Any]) -> int | None:
    """Forwards of this rank since its start: a number, or the sum of numbers per layer or per kernel."""
    value = entry.get("launches")
    if isinstance(value, dict):
        numbers = [v for v in value.values() if isinstance(v, int)]
        return sum(numbers) if numbers else None
    if isinstance(value, list):
        return sum(v for v in value if isinstance(v, int))
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def silent_layers(entry: dict[str, Any]) -> list[str]:
    """Layers with a counter of their own that never counted."""
    value = entry.get("launches")
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [str(k) for k, v in pairs if v == 0]


def layer_count(entry: dict[str, Any]) -> int | None:
    value = entry.get("layers", entry.get("layers_converted"))
    return len(value) if isinstance(value, (list, dict)) else value if isinstance(value, int) else None


def judge_evidence(ranks: list[dict[str, Any]]) -> list[str]:
    """What speaks against calling the fused path active; empty when nothing does."""
    if not ranks:
        return ["no rank has written evidence"]
    against = []
    expected = max((e.get("ep_size") or e.get("ranks") or e.get("world_size") or 0) for e in ranks) or len(ranks)
    present = {e["rank"] for e in ranks}
    if isinstance(expected, int) and present != set(range(expected)):
        against.append(f"ranks {sorted(set(range(expected)) - present)} of {expected} have written none")
    layers = {layer_count(e) for e in ranks}
    if len(layers) > 1 or layers & {None, 0}:
        against.append(f"the ranks do not agree on their fused layers, or name none: {sorted(map(str, layers))}")
    for entry in ranks:
        test = entry.get("selftest")
        state = test.get("status") if isinstance(test, dict) else test
        if state != "pass":
            against.append(f"rank {entry['rank']}: its start-up self-test is {state!r}, not passed")
        if not launches(entry):
            against.append(f"rank {entry['rank']}: the fused path has not run (launches {entry.get('launches')!r})")
        if silent_layers(entry):
            against.append(f"rank {entry['rank']}: layers {silent_layers(entry)[:5]} never ran fused")
    return against
