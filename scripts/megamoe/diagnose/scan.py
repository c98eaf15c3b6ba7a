"""Reads logs once and keeps only what can decide: events, in constant memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from megamoe.diagnose.catalogue import Rule, rules
from megamoe.diagnose.lines import RAW_CAP, Line, parse, rank_of_file, rank_place
from megamoe.diagnose.prefilter import Prefilter, in_order
from megamoe.diagnose.records import JSON_CAP, LOGFMT, unwrap
from megamoe.diagnose.source import chunks

KEEP_PER_CLASS = 64  # events kept per file, class and rank; of later ones the first since the server was last ready
TRACE_LINES = 400  # longest stack that is followed

# Bounded: a name of 4,000 characters would take a sixth of a second.
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit|Fault|Failure)\b"
                        r"(?::.*)?$")
_LINE_END = re.compile(rb"[\r\n]")
# SGLang puts a sentence in front of it; an exception group a plus sign; a collector words that it repeats on each line.
_TRACE = re.compile(r"(?:^|: |^\+ Exception Group |^(?P<lead>(?:[\w./@:|\u203a\u2502-]{1,80} ){1,4}))"
                    r"Traceback \(most recent call last\)", re.I)
_ANY_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::.*)?$")
_NUMBERS = ('"message":[', '"message": [')  # journald writes a text with control characters as a list of its bytes
_TRACE_TRIGGER = ("traceback (most", "error: ", "exception: ", "exception", "runtimeerror", "assertionerror",
                  "terminate called", *_NUMBERS)
_TERMINATE = re.compile(r"terminate called (?:after throwing an instance of|without an active exception)")
_HEADER = re.compile(rb"Process \S{1,100}:\s*$")  # multiprocessing names the process on the line above its stack
HEAD = 80  # bytes of a line's beginning that go with a later piece of it: time and rank
OVERLAP = 256  # bytes of the piece before, so that a needle on the border is whole
# Control characters that no terminal output holds; a log in any 8-bit or UTF-8 text has next to none.
_CONTROL = bytes({*range(32), 127} - {8, 9, 10, 12, 13, 27})
CONTROL_SHARE = 0.05  # random or compressed bytes have a tenth
LATE = 4096  # such later events per file
_SHAPE = bytes.maketrans(b"0123456789", b"0" * 10)
_OTHER_DIGITS = (str.maketrans("123456789", "0" * 9), str.maketrans("012345689", "7" * 9))
SHAPE_MAX, SHAPES = 1024, 4096  # bytes of a line, and shapes of one file, that are remembered
_WRAPPED = (b"{", b"\0", b"\1", b"\2")
THIN_AFTER = 1000  # hits of one needle in one file, after which only the first and last of each chunk count


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
    said: bool = False  # anything but blank lines
    files: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)  # archives that end too early
    not_text: list[str] = field(default_factory=list)  # files whose beginning is full of control characters


@dataclass(slots=True)
class _Trace:
    """A stack whose end has not been seen. left: lines of its own rank, age: lines of anybody, that are still read."""

    rank: int | None
    line: Line
    number: int
    time: float | None
    lead: str = ""  # what stands before each of its lines
    left: int = TRACE_LINES
    age: int = 10 * TRACE_LINES


@dataclass(frozen=True, slots=True)
class _Words:
    """The needles and what follows from each.

    thin: needles of one rule whose repetition tells nothing new. exact: needles of rules that look for a certain number
    (an errno, a status), so that lines that differ in digits alone may differ in meaning.
    """

    filter: Prefilter
    rules: dict[bytes, tuple[int, ...]]  # indexes into rules()
    thin: frozenset[bytes]
    exact: frozenset[bytes]
    faint: frozenset[bytes]  # of rules that say nothing of a line inside a stack


@lru_cache(maxsize=1)
def words() -> _Words:
    by_needle: dict[bytes, list[int]] = {}
    for index, rule in enumerate(rules()):
        for needle in rule.needles:
            by_needle.setdefault(needle.encode(), []).append(index)
    triggers = [t.encode() for t in _TRACE_TRIGGER]
    thin = frozenset(n for n, found in by_needle.items() if len(found) == 1 and n not in triggers
                     and rules()[found[0]].kind in ("marker", "victim", "unknown", "risk", "warn", "benign"))
    exact = frozenset(n for n, found in by_needle.items() if any(_tells_numbers(rules()[i]) for i in found))
    faint = frozenset(n for n, found in by_needle.items() if n not in triggers and all(
        rules()[i].kind == "unknown" for i in found))
    return _Words(Prefilter([n.decode() for n in [*by_needle, *triggers]]),
                  {n: tuple(found) for n, found in by_needle.items()}, thin, exact, faint)


def _tells_numbers(rule: Rule) -> bool:
    """Whether a pattern holds a certain number: a digit that is no class, no count of repetitions and no zero."""
    parts = rule.pattern.pattern + "|" + (rule.unless.pattern if rule.unless else "")
    return bool(re.search(r"[1-9]", re.sub(r"\{[0-9,]+\}|\[[01]-9\]", "", parts)))


def _within(line: Line) -> bool:
    """Whether a line looks like the inside of a stack: indented, a file, or a marker under a source line."""
    stripped = line.body.strip()
    return line.body[:1] in (" ", "\t") or stripped[:1] in ("^", "~", "|", "+") or stripped.startswith(
        ("File ", "[Previous line"))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What became of a line; lines of the same shape (equal but for digits) have their rank at the same place."""

    name: str  # of the class; "" for a line inside a stack
    rank: slice | None
    fixed: int | None  # the rank that the file's name gives


class _FileScan:
    def __init__(self, scan: Scan, index: int, name: str) -> None:
        self.scan, self.index, self.name = scan, index, name
        self.hits: Counter[bytes] = Counter()
        self.file_rank = rank_of_file(name)
        self.traces: list[_Trace] = []
        self.cut: list[_Trace] = []
        self.kept: Counter[str] = Counter()
        self.ready: Event | None = None
        self.late: dict[str, tuple[Event | None, Event]] = {}  # with the READY that came before it
        self.time: float | None = None
        self.clock = ""
        self.day = 0.0
        self.seen: dict[bytes, _Seen] = {}
        self.skipped = b""

    def thinned(self, places: dict[bytes, npt.NDArray[np.intp]]) -> list[tuple[int, bytes]]:
        """The hits in order, less those that repeat what is known: watchdogs and access lines fill gigabytes."""
        kept = {}
        for needle, found in places.items():
            left = max(2, THIN_AFTER - self.hits[needle])
            self.hits[needle] += len(found)
            few = len(found) <= left or needle not in words().thin
            kept[needle] = found if few else np.append(found[:left - 1], found[-1])
        return in_order(kept)

    def line(self, raw: bytes, number: int, needles: set[bytes], above: bytes = b"") -> None:
        """One line of the file, which may carry several (a JSON record with a stack in it). above: the one before."""
        inside = bool(self.traces)
        plain = len(raw) <= SHAPE_MAX and (needles <= words().faint if inside else needles.isdisjoint(words().exact))
        shape = raw.translate(_SHAPE) if plain else b""
        if shape and (known := self.seen.get(shape)) is not None and (known.name == "") == inside and (
                self.tells_nothing(known, raw)):
            self.skipped = raw
            return
        self.catch_up()
        if plain and raw[:1] not in _WRAPPED and not LOGFMT.match(raw):
            line = parse(raw)
            before = self.scan.counts.total()
            name = self.one(line, number, needles, above)
            events = self.scan.counts.total() - before
            if len(self.seen) < SHAPES and (_within(line) and not events if inside else
                                            name and events == 1 and not self.traces):
                self.remember(shape, raw, line, "" if inside else name, needles)
            return
        hidden = any(n.encode() in needles for n in _NUMBERS)
        for text in unwrap(raw):
            found = {needle for _, needle in words().filter.positions(text)} if hidden else needles
            self.one(parse(text), number, found, above)

    def tells_nothing(self, seen: _Seen, raw: bytes) -> bool:
        """True when enough events of this class and rank are kept: the first ones, and one since the last READY.

        A line inside a stack tells nothing but that the stack goes on.
        """
        rank = seen.fixed if seen.rank is None else int(raw[seen.rank])
        if not seen.name:
            self.follow(rank, own=seen.rank is not None)
            return True
        key = f"{seen.name}/{rank}"
        if self.kept[key] < KEEP_PER_CLASS or key not in self.late or self.late[key][0] is not self.ready:
            return False
        self.kept[key] += 1
        self.scan.counts[seen.name] += 1
        return True

    def remember(self, shape: bytes, raw: bytes, line: Line, name: str, needles: set[bytes]) -> None:
        """A plain line that gave one event by itself, so that another of its shape need not be read.

        Patterns that tell zero from other numbers are tried with both: what they say must not depend on it.
        """
        found = rank_place(raw) if line.rank is not None else None
        if line.rank is not None and (found is None or int(raw[found]) != line.rank):
            return
        known = words().rules
        for index in {index for needle in needles for index in known.get(needle, ())}:
            as_read = rules()[index].matches(line.text)
            if any(rules()[index].matches(line.text.translate(other)) != as_read for other in _OTHER_DIGITS):
                return
        self.seen[shape] = _Seen(name, found, self.file_rank)

    def catch_up(self) -> None:
        """The time of lines that were passed over is the time of what comes next without a stamp."""
        if self.skipped:
            raw, self.skipped = self.skipped, b""
            self.tick(parse(raw))

    def tick(self, line: Line) -> None:
        if line.time is not None:
            time = line.time
            if line.clock == "day":  # past midnight the clock starts again
                if self.clock == "day" and self.time is not None and time + self.day < self.time - 43200:
                    self.day += 86400.0
                time += self.day
            self.time, self.clock = time, line.clock
            if self.scan.first_time is None:
                self.scan.first_time, self.scan.first_clock = time, line.clock

    def one(self, line: Line, number: int, needles: set[bytes], above: bytes) -> str:
        """The class that this line was taken for; "" for none."""
        self.tick(line)
        body, stripped = line.body, line.body.strip()
        if not stripped:
            return ""
        if opened := _TRACE.search(stripped):
            rank = self.rank(line)
            if rank is None and (found := _HEADER.search(above)):
                rank = parse(found[0]).rank
            self.traces = [*[t for t in self.traces if t.rank != rank][-32:], _Trace(
                rank, line, number, self.time, opened["lead"] or "")]
            return ""
        inside = bool(self.traces)
        lead = next((t.lead for t in self.traces if t.lead and body.startswith(t.lead)), "")
        if lead:
            line = replace(line, body=body[len(lead):])
            body, stripped = line.body, line.body.strip()
            if not stripped:
                return ""
        trace = self.ends_trace(line, stripped)
        known = words().rules
        candidates = sorted({index for needle in needles for index in known.get(needle, ())})
        rule = next((rules()[i] for i in candidates if rules()[i].matches(line.text)), None)
        if rule is not None and (rule.kind == "benign" or (rule.kind == "unknown" and inside and _within(line))):
            return ""
        rank = trace.rank if trace is not None and line.rank is None else self.rank(line)
        exception = trace is not None or _TERMINATE.match(stripped) or (
            _EXCEPTION.match(stripped) and body[:1] not in " \t")
        if rule is not None and not (exception and rule.kind == "unknown"):
            self.add(rule, line, number, rank)
            return rule.id if rule.kind in ("cause", "victim") else ""
        if exception:
            self.add(None, line, number, rank)
            return "EXCEPTION" if trace is None else ""
        return ""

    def rank(self, line: Line) -> int | None:
        return line.rank if line.rank is not None else self.file_rank

    def follow(self, rank: int | None, *, own: bool) -> _Trace | None:
        """The open stack that a line belongs to; every stack grows older by it. own: the line itself names the rank."""
        for old in self.traces:
            old.age -= 1
        if self.traces and self.traces[0].age <= 0:  # its rank is silent; the rest of the log is read at full speed
            self.cut.append(self.traces.pop(0))
        trace = next((t for t in reversed(self.traces) if t.rank == rank), None)
        if trace is None and not own and self.traces:  # stacks are often printed without the prefix of their first line
            trace = self.traces[-1]
        if trace is None:
            return None
        trace.left -= 1
        if trace.left <= 0:
            self.traces.remove(trace)
            return None
        return trace

    def ends_trace(self, line: Line, stripped: str) -> _Trace | None:
        """The open stack that this line, an exception, ends."""
        trace = self.follow(self.rank(line), own=line.rank is not None)
        if trace is None or _within(line):
            return None
        if line.time is not None and not _EXCEPTION.match(stripped) and line.rank != trace.rank:
            return None
        self.traces.remove(trace)
        return trace if _ANY_EXCEPTION.match(stripped) else None

    def end(self) -> None:
        """A rank whose log stops inside a stack died there, though the words of its exception are lost."""
        for trace in [*self.cut, *self.traces]:
            self.time = trace.time
            self.add(None, trace.line, trace.number, trace.rank)
        self.scan.events += [event for _, event in self.late.values()]
        if self.ready is not None and self.kept["READY/None"] > KEEP_PER_CLASS:
            self.scan.events.append(self.ready)  # what was survived is survived until here

    def add(self, rule: Rule | None, line: Line, number: int, rank: int | None) -> None:
        name = rule.id if rule else "EXCEPTION"
        self.scan.counts[name] += 1
        event = Event(rule, self.name, number, line.text, self.time, self.clock,
                      rank, (self.index, number))
        self.scan.last[name] = event
        # Per rank, so that the first word of every rank is kept however chatty one of them is.
        key = f"{name}/{event.rank}" if name != "READY" else "READY/None"
        self.kept[key] += 1
        if name == "READY":
            self.ready = event
        if self.kept[key] <= KEEP_PER_CLASS and len(self.scan.events) < 20000:
            self.scan.events.append(event)
        elif name != "READY" and (len(self.late) < LATE or key in self.late) and (
                key not in self.late or self.late[key][0] is not self.ready):
            # A server survives some exceptions for days; the one that ends it comes after all of them.
            self.late[key] = (self.ready, event)


def scan(paths: Iterable[str]) -> Scan:
    """Reads every log once.

    Raises:
        Problem: a file cannot be read (megamoe.diagnose.source).
    """
    out = Scan()
    for index, path in enumerate(paths):
        out.files.append(path)
        state, base = _FileScan(out, index, path), 1
        head = before = b""
        for chunk in chunks(path, out.cut):
            if base == 1 and len(chunk) - len(chunk.translate(None, _CONTROL)) > CONTROL_SHARE * len(chunk):
                out.not_text.append(path)
            out.bytes += len(chunk)
            out.said = out.said or not chunk.isspace()
            _scan_chunk(state, before + chunk, base)
            base += chunk.count(b"\n")
            # A line of many megabytes comes in pieces: the next one is led by its head, and is no line of its own.
            if chunk.endswith(b"\n"):
                head = before = b""
            else:
                head = head or chunk[chunk.rfind(b"\n") + 1:][:HEAD]
                before = head + b" [...] " + chunk[-OVERLAP:]
        state.end()
        out.lines += base if before else base - 1
    return out


def _scan_chunk(state: _FileScan, chunk: bytes, base: int) -> None:
    """Hands every line that holds a needle, and every line of an open stack, to `state`. base: first line's number."""
    hits = state.thinned(words().filter.places(chunk))
    returns = b"\r" in chunk  # progress bars redraw themselves on one line; each drawing is looked at as a line
    done = counted = index = 0  # everything before `done` is dealt with; `number` is the line number at `counted`
    number = base
    while True:
        while index < len(hits) and hits[index][0] < done:
            index += 1
        if state.traces:  # inside a stack every line counts
            start = done
        elif index == len(hits):
            state.catch_up()  # once a chunk, so that midnight is not passed over
            return
        else:
            start = max(chunk.rfind(b"\n", done, hits[index][0]), chunk.rfind(b"\r", done, hits[index][0])
                        if returns else -1) + 1 or done
        if start >= len(chunk):
            return
        stop = _LINE_END.search(chunk, start) if returns else None
        end = stop.start() if stop else -1 if returns else chunk.find(b"\n", start)
        end = len(chunk) if end < 0 else end
        number += chunk.count(b"\n", counted, start)
        counted = start
        needles = set()
        at = hits[index][0] if index < len(hits) else start
        while index < len(hits) and hits[index][0] < end:
            needles.add(hits[index][1])
            index += 1
        above = b""
        if b"traceback (most" in needles:
            above = chunk[max(0, chunk.rfind(b"\n", 0, max(0, start - 1))):start]
        state.line(clip(chunk, start, end, at), number, needles, above)
        done = end + 1


def clip(chunk: bytes, start: int, end: int, at: int) -> bytes:
    """The line from start to end; of a very long one its beginning (time, rank) and what stands around `at`."""
    if end - start <= RAW_CAP or chunk.startswith(b"{", start):
        return chunk[start:min(end, start + JSON_CAP)]
    if at - start < RAW_CAP // 2:
        return chunk[start:start + RAW_CAP]
    return chunk[start:start + 160] + b" [...] " + chunk[at - RAW_CAP // 4:min(end, at + RAW_CAP // 4)]
