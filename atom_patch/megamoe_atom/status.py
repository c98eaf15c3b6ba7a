"""Evidence while serving: one JSON file per rank, written atomically, and its reader.

`smoke` and `megamoe status` read these files: a fused path that left none here does not count as active. Counting a
forward is one dictionary increment on the host; no device is asked, and the file is written at most once per interval.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from megamoe_atom.kernel_edits import LAUNCH_EPOCH
from megamoe_atom.problem import Exit, Problem

SCHEMA_VERSION = 1
EPOCH_LAUNCHES = 2**31
SelftestState = Literal["pending", "passed", "failed", "off"]
_STATES = ("pending", "passed", "failed", "off")
_NAME = re.compile(r"rank-(\d+)\.json")


@dataclass(slots=True)
class RankStatus:
    """One rank's evidence. Times are Unix seconds; heap sizes bytes; selftest maps layer to its relL2.

    kernel_instances: MegaMoE objects of this process; more than one per geometry would mean a leak of heap.
    launches: stage-1 launches of all layers together, replayed graphs included: the number that the epoch counts.
    kernel_edits: the edits that the loaded kernels carry; proven by execution on a CPU, not yet run on gfx950.
    """

    rank: int
    ep_size: int
    geometry: dict[str, Any]
    mtpr: int
    layers_converted: list[str] = field(default_factory=list)
    kernel_instances: int = 0
    launches: int = 0
    launches_per_layer: dict[str, int] = field(default_factory=dict)
    heap_asked_bytes: int = 0
    heap_used_bytes: int = 0
    selftest_state: SelftestState = "pending"
    selftest: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    edits_hash: str = ""
    kernel_edits: list[str] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)
    started_at: float = field(default_factory=time.time)
    updated_at: float = 0.0
    schema_version: int = SCHEMA_VERSION

    @property
    def epoch_share(self) -> float:
        """Part of the 2^31 launches that are used up, 0 to 1; 0 where the epoch may wrap (edit launch_epoch)."""
        return 0.0 if LAUNCH_EPOCH in self.kernel_edits else self.launches / EPOCH_LAUNCHES

    def as_dict(self) -> dict[str, Any]:
        """JSON form; a figure that is not finite becomes a word, since JSON has none."""
        body = asdict(self) | {"epoch_share": self.epoch_share}
        body["selftest"] = {k: v if math.isfinite(v) else str(v) for k, v in self.selftest.items()}
        return body


def file_of(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}.json"


class StatusWriter:
    """Writes one rank's file. `forward()` may be called for every layer of every step."""

    def __init__(
        self,
        directory: Path,
        status: RankStatus,
        *,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the directory and the first file, so that a launch that cannot leave evidence fails at start-up.

        interval_s: a smoke test of a few seconds must see the counters grow, so not more than a second or so. Files of
        ranks that this group does not have (an earlier start of another size) are removed: they prove nothing of it.

        Raises:
            Problem: "status_dir", the directory cannot be written.
        """
        self.status = status
        self._directory = directory
        self._interval_s = interval_s
        self._clock = clock
        self._next = 0.0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for path in directory.iterdir():
                if (named := _NAME.fullmatch(path.name)) and int(named[1]) >= status.ep_size:
                    path.unlink(missing_ok=True)  # another rank of this start may have been faster
            self._replace()
        except OSError as error:
            raise Problem(
                "status_dir",
                exit_code=Exit.PRECONDITION,
                what=f"MEGAMOE_STATUS_DIR={directory} cannot be written: {error.strerror or error}",
                why="without its evidence no gate will call the fused path active",
                fix="mount a writable directory there, or set MEGAMOE_STATUS_DIR",
            ) from error
        self._next = clock() + interval_s

    def forward(self, layer: str, launches: int = 1) -> None:
        """Counts launches of a layer and writes the file when the interval has passed."""
        self.forwards({layer: launches})

    def forwards(self, launches: Mapping[str, int]) -> None:
        """The same for several layers, layer -> launches: what one replayed graph holds."""
        status = self.status
        for layer, count in launches.items():
            status.launches += count
            status.launches_per_layer[layer] = status.launches_per_layer.get(layer, 0) + count
        if self._clock() >= self._next:
            self.write()

    def write(self) -> bool:
        """Writes now. Returns False when the file system refuses: evidence must not stop a service that runs."""
        self._next = self._clock() + self._interval_s
        try:
            self._replace()
        except OSError:
            return False
        return True

    def _replace(self) -> None:
        self.status.updated_at = time.time()
        path = file_of(self._directory, self.status.rank)
        # The name carries the pid: two processes that claim one rank must not mix their halves in one file.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(json.dumps(self.status.as_dict(), allow_nan=False) + "\n", encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "rank": int,
    "ep_size": int,
    "geometry": dict,
    "mtpr": int,
    "layers_converted": list,
    "kernel_instances": int,
    "launches": int,
    "launches_per_layer": dict,
    "heap_asked_bytes": int,
    "heap_used_bytes": int,
    "selftest_state": str,
    "selftest": dict,
    "versions": dict,
    "edits_hash": str,
    "kernel_edits": list,
    "pid": int,
    "started_at": (int, float),
    "updated_at": (int, float),
    "schema_version": int,
}


def _bad(where: Path | str, what: str, why: str) -> Problem:
    return Problem(
        "status_file",
        exit_code=Exit.NO_EVIDENCE,
        what=f"{where}: {what}",
        why=why,
        fix="look at that rank's log; remove the file when it belongs to no running rank",
    )


def read_status(path: Path) -> RankStatus:
    """Reads one file.

    Raises:
        Problem: "status_file" (exit 5: no evidence): unreadable, truncated, foreign, of another schema, wrong rank.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(path, f"cannot be read ({error})", "this rank's evidence is missing") from error
    try:
        body: Any = json.loads(text)
    except ValueError as error:
        raise _bad(
            path,
            f"is not JSON ({error}; {len(text)} characters)",
            "the adapter replaces the file whole, so a part of one was written by something else",
        ) from error
    status = parse_status(body, path)
    named = _NAME.fullmatch(path.name)
    if named and int(named[1]) != status.rank:
        raise _bad(path, f"says rank {status.rank}", "two ranks would be counted as one")
    return status


def parse_status(body: Any, where: Path | str) -> RankStatus:
    """One rank's evidence from its JSON form; `where` names the source in errors.

    Raises:
        Problem: "status_file" (exit 5: no evidence): foreign, of another schema, or a figure is missing or mistyped.
    """
    if not isinstance(body, dict):
        raise _bad(where, "holds no JSON object", "it was not written by the adapter")
    if body.get("schema_version") != SCHEMA_VERSION:
        raise _bad(
            where,
            f"has schema_version {body.get('schema_version')!r}, expected {SCHEMA_VERSION}",
            "image and command line are of different versions, or another program wrote it",
        )
    wrong = [n for n, kind in _TYPES.items() if not isinstance(body.get(n), kind) or isinstance(body.get(n), bool)]
    if wrong or body["selftest_state"] not in _STATES:
        raise _bad(where, f"lacks or mistypes {', '.join(wrong) or 'selftest_state'}", "its evidence cannot be judged")
    values = {f.name: body[f.name] for f in fields(RankStatus)}
    values["selftest"] = {k: float(v) for k, v in body["selftest"].items()}
    return RankStatus(**values)


def read_status_dir(directory: Path) -> list[RankStatus]:
    """All ranks' evidence in rank order; temporary files are skipped, every other file must be a rank's.

    Raises:
        Problem: "status_missing" (no directory or no file), "status_file"; exit 5.
    """
    try:
        paths = sorted(p for p in directory.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise Problem(
            "status_missing",
            exit_code=Exit.NO_EVIDENCE,
            what=f"{directory} cannot be listed: {error.strerror or error}",
            why="the adapter writes one file per rank there once it has built its first kernel",
            fix="check MEGAMOE_STATUS_DIR and that the engine was started with MegaMoE",
        ) from error
    if not paths:
        raise Problem(
            "status_missing",
            exit_code=Exit.NO_EVIDENCE,
            what=f"{directory} is empty",
            why="no rank has built a MegaMoE kernel",
            fix="check that both ATOM_USE_FLYDSL switches are 1",
        )
    for path in paths:
        if not _NAME.fullmatch(path.name):
            raise _bad(path, "is not a rank's file (rank-N.json)", "evidence must not be mixed with other files")
    return sorted((read_status(p) for p in paths), key=lambda s: s.rank)
