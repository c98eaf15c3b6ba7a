"""Reads logs once and keeps only what can decide: events, in constant memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from megamoe.diagnose.catalogue import Rule, rules
from megamoe.diagnose.lines import Line, parse, rank_of_file
from megamoe.diagnose.prefilter import Prefilter
from megamoe.diagnose.source import chunks

KEEP_PER_CLASS = 64  # events kept per file and class: the first ones decide, the last one is kept too
TRACE_LINES = 400  # longest stack that is followed

_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Fault|Failure)\b(?::.*)?$")
_ANY_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::.*)?$")
_TRACE_TRIGGER = ("traceback (most", "error: ", "exception: ", "exception", "runtimeerror", "assertionerror")


_ANSWERED = frozenset(n.encode() for r in rules() if r.id == "READY" for n in r.needles if n.endswith("200"))


@dataclass(frozen=True, slots=True)
class Event:
    """A line that matters. `rule` is None for an exception of no known class. order: position in the input."""

    rule: Rule | None
    file: str
    line: int
    text: str
    time: float | None
    clock: str
    rank: int | None
    order: tuple[int, int]


@dataclass(slots=True)
class Scan:
    """All that judge needs of the logs."""

    events: list[Event] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    last: dict[str, Event] = field(default_factory=dict)
    first_time: float | None = None
    first_clock: str = ""
    lines: int = 0
    bytes: int = 0
    files: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Trace:
    rank: int | None
    left: int = TRACE_LINES


class _FileScan:
    def __init__(self, scan: Scan, index: int, name: str) -> None:
        self.scan, self.index, self.name = scan, index, name
        self.file_rank = rank_of_file(name)
        self.traces: list[_Trace] = []
        self.kept: Counter[str] = Counter()
        self.time: float | None = None
        self.clock = ""
        self.day = 0.0

    def line(self, raw: bytes, number: int) -> None:
        line = parse(raw)
        if line.time is not None:
            time = line.time
            if line.clock == "day":  # past midnight the clock starts again
                if self.clock == "day" and self.time is not None and time + self.day < self.time - 43200:
                    self.day += 86400.0
                time += self.day
            self.time, self.clock = time, line.clock
            if self.scan.first_time is None:
                self.scan.first_time, self.scan.first_clock = time, line.clock
        body, stripped = line.body, line.body.strip()
        if not stripped:
            return
        if stripped.lower().startswith("traceback (most recent call last)"):
            rank = self.rank(line)
            self.traces = [*[t for t in self.traces if t.rank != rank][-32:], _Trace(rank)]
            return
        ended = self.ends_trace(line, body, stripped)
        lower = line.text.lower()
        rule = next((r for r in rules() if any(n in lower for n in r.needles) and r.matches(line.text)), None)
        if rule is not None and rule.kind == "benign":
            return
        if rule is not None:
            self.add(rule, line, number)
        elif ended or (_EXCEPTION.match(stripped) and body[:1] not in " \t"):
            self.add(None, line, number)

    def rank(self, line: Line) -> int | None:
        return line.rank if line.rank is not None else self.file_rank

    def ends_trace(self, line: Line, body: str, stripped: str) -> bool:
        """True when this line is the exception that ends an open stack."""
        if not self.traces:
            return False
        rank = self.rank(line)
        trace = next((t for t in reversed(self.traces) if t.rank == rank), None)
        if trace is None and line.rank is None:  # stacks are often printed without the prefix of their first line
            trace = self.traces[-1]
        if trace is None:
            return False
        trace.left -= 1
        if trace.left <= 0:
            self.traces.remove(trace)
            return False
        if body[:1] in " \t" or stripped[0] in "^~|+" or stripped.startswith(("File ", "[Previous line")):
            return False
        if line.time is not None and not _EXCEPTION.match(stripped) and line.rank != trace.rank:
            return False
        self.traces.remove(trace)
        return bool(_ANY_EXCEPTION.match(stripped))

    def add(self, rule: Rule | None, line: Line, number: int) -> None:
        name = rule.id if rule else "EXCEPTION"
        self.scan.counts[name] += 1
        event = Event(rule, self.name, number, line.text, self.time, self.clock,
                      self.rank(line), (self.index, number))
        self.scan.last[name] = event
        # Per rank, so that the first word of every rank is kept however chatty one of them is.
        key = f"{name}/{event.rank}" if name != "READY" else "READY/None"
        self.kept[key] += 1
        if self.kept[key] <= KEEP_PER_CLASS and len(self.scan.events) < 20000:
            self.scan.events.append(event)


def prefilter() -> Prefilter:
    return Prefilter([n for r in rules() for n in r.needles] + list(_TRACE_TRIGGER))


def scan(paths: Iterable[str]) -> Scan:
    """Reads every log once.

    Raises:
        Problem: a file cannot be read (megamoe.diagnose.source).
    """
    out, filt = Scan(), prefilter()
    for index, path in enumerate(paths):
        name = path
        out.files.append(name)
        state, base = _FileScan(out, index, name), 1
        for chunk in chunks(path):
            out.bytes += len(chunk)
            _scan_chunk(state, filt, chunk, base)
            base += chunk.count(b"\n")
            if not chunk.endswith(b"\n"):
                base += 1
        out.lines += base - 1
    return out


def _scan_chunk(state: _FileScan, filt: Prefilter, chunk: bytes, base: int) -> None:
    hits = filt.positions(chunk)
    if state.kept["READY/None"] > KEEP_PER_CLASS:
        # Access lines of a healthy server fill gigabytes: only the last one of a chunk still tells something.
        answered = [p for p, needle in hits if needle in _ANSWERED]
        positions = [p for p, needle in hits if needle not in _ANSWERED or p == answered[-1]]
    else:
        positions = [p for p, _ in hits]
    done = counted = 0  # everything before `done` is dealt with; `number` is the line number at `counted`
    number = base
    index = 0
    while True:
        if state.traces:  # inside a stack every line counts
            start = done
        else:
            while index < len(positions) and positions[index] < done:
                index += 1
            if index == len(positions):
                return
            start = chunk.rfind(b"\n", done, positions[index]) + 1 or done
        if start >= len(chunk):
            return
        end = chunk.find(b"\n", start)
        end = len(chunk) if end < 0 else end
        number += chunk.count(b"\n", counted, start)
        counted = start
        state.line(chunk[start:end], number)
        done = end + 1
