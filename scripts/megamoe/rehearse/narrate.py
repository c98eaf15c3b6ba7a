"""Progress for a person, on stderr, and the same phases as data for the summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO


@dataclass(slots=True)
class Phase:
    """One step a person can name. began: seconds after the start; seconds is None while it runs; status is a word of
    the envelope. Phases may overlap, so their seconds may add up to more than the whole took."""

    name: str
    began: float = 0.0
    status: str = "running"
    seconds: float | None = None
    note: str = ""


@dataclass(slots=True)
class Narrator:
    """Writes one plain line when a phase starts, says something, and ends; every line carries the elapsed time."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    started: float = field(default_factory=time.monotonic)
    phases: list[Phase] = field(default_factory=list)

    def line(self, text: str) -> None:
        elapsed = time.monotonic() - self.started
        print(f"[{int(elapsed) // 60:02d}:{int(elapsed) % 60:02d}] {text}", file=self.stream, flush=True)

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        entry = Phase(name, round(time.monotonic() - self.started, 1))
        self.phases.append(entry)
        self.line(f"{name} ...")
        begun = time.monotonic()
        try:
            yield entry
        except BaseException:
            entry.status, entry.seconds = "fail", round(time.monotonic() - begun, 1)
            self.line(f"{name}: failed after {entry.seconds:.1f} s")
            raise
        entry.seconds = round(time.monotonic() - begun, 1)
        if entry.status == "running":
            entry.status = "pass"
        self.line(f"{name}: {entry.status}, {entry.seconds:.1f} s" + (f" ({entry.note})" if entry.note else ""))

    def as_data(self) -> list[dict[str, Any]]:
        return [asdict(phase) for phase in self.phases]
