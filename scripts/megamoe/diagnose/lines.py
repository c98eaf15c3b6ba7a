"""What a log line says about time, rank and text, whatever wrote it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

LINE_CAP = 4096  # characters of a line that are looked at
RAW_CAP = 2 * LINE_CAP  # bytes of a line that are decoded
JSON_CAP = 1 << 16  # bytes of a JSON record that are parsed: a whole stack may be in it

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_JUNK = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufffd]")
_ISO = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")
_MONTH_DAY = re.compile(r"(?<!\d)(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_SYSLOG = re.compile(r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+(\d{1,2}) "
                     r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_CLOCK = re.compile(r"(?<![\d:.])([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,](\d{1,9}))?(?![\d:])")
_EPOCH = re.compile(r"^[\[(]?(1[0-9]{9})(\d{3}|\d{6}|\d{9})?(?:\.(\d{1,9}))?[\])]?(?=[\s:|])")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_RANK = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:global|local|dp|ep|tp|world)?[_ -]?rank[_ :=#-]{0,2}(\d{1,4})(?![\d.])"
    r"|(?:DP|EP)[_ ]?(\d{1,3})(?![\d.A-Za-z])"
    r"|(?:worker|scheduler|gpu_?worker)[_ -]?(?:TP|DP|EP)?[_ -]?(\d{1,3})(?![\d.])|TP[_ ]?(\d{1,3})(?![\d.A-Za-z])"
    r"|R(\d{1,3})(?=[\]:|>]))", re.I)
_FRAME = re.compile(rb"[\x00-\x02]\x00\x00\x00[\x00-\xff]{4}")
_FILE_RANK = re.compile(r"(?:rank|dp|ep|worker)[_.-]?(\d{1,3})(?!\d)", re.I)
_PREFIX = re.compile(
    r"^(?:\s*(?:\[[^\]]{0,80}\]:?|\([^)]{0,80}\)|[<|]?(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|E|W|I)\b[:|>]?"
    r"|(?:[\w.-]{1,60} )?[\w./-]{1,60}\[\d+\]:|std(?:out|err) [FP]\b|[\w.-]{1,40} +\|"
    r"|(?:global|local|dp|ep|tp)?_?rank[ _:=-]?\d{1,4}[:|>\]]?|\|)\s?)+", re.I)


@dataclass(frozen=True, slots=True)
class Line:
    """`time` in seconds on the scale of `clock` (abs, naive, day, syslog or ""); `body` keeps its indentation."""

    text: str
    body: str
    time: float | None
    clock: str
    rank: int | None


def decode(raw: bytes) -> str:
    """Bytes as one clean line: no colours, no control bytes, at most LINE_CAP characters."""
    text = raw[:RAW_CAP].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _JUNK.sub("", text)[:LINE_CAP].rstrip()


def unwrap(raw: bytes) -> list[bytes]:
    """The lines inside one line: docker's json-file records and structured logs carry text, and stacks, as JSON.

    A record's time and rank lead each of its lines. Anything that is not a JSON object stays as it is, less the frame
    of docker's raw stream: stream number, three zeros, four bytes of length.
    """
    if _FRAME.match(raw):
        raw = raw[8:]
    if not raw.startswith(b"{") or not raw.rstrip().endswith(b"}"):
        return [raw]
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return [raw]
    texts = {str(k).lower(): v for k, v in record.items() if isinstance(v, str)}
    lead = next((texts.pop(k) for k in ("time", "timestamp", "ts", "asctime", "@timestamp") if k in texts), "")
    rank = next((v for k, v in record.items() if str(k).lower() in ("rank", "dp_rank", "ep_rank") and
                 isinstance(v, int) and not isinstance(v, bool)), None)
    lead += " " * bool(lead) + (f"[rank {rank}] " if rank is not None else "")
    lines = [line for text in texts.values() for line in text.splitlines() if line.strip()]
    return [(lead + line).encode("utf-8", "replace") for line in lines] or [raw]


def _fraction(text: str | None) -> float:
    return float("0." + text) if text else 0.0


def time_of(text: str) -> tuple[float | None, str, int]:
    """(seconds, clock, end of the stamp) from the first 80 characters; (None, "", 0) when there is no stamp."""
    head = text[:80]
    if m := _ISO.search(head):
        try:
            when = datetime(*(int(m[i]) for i in range(1, 7)), tzinfo=UTC)  # type: ignore[arg-type,misc]
        except ValueError:
            return None, "", 0
        seconds = when.timestamp() + _fraction(m[7])
        if m[8] and m[8] != "Z":
            digits = m[8][1:].replace(":", "")
            seconds -= (1 if m[8][0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
        return seconds, "abs" if m[8] else "naive", m.end()
    for pattern, kind in ((_SYSLOG, "syslog"), (_MONTH_DAY, "syslog")):
        if m := pattern.search(head):
            month = _MONTHS.index(m[1]) + 1 if pattern is _SYSLOG else int(m[1])
            seconds = ((month * 31 + int(m[2])) * 24 + int(m[3])) * 3600.0 + int(m[4]) * 60 + int(m[5])
            return seconds + _fraction(m[6]), kind, m.end()
    if m := _CLOCK.search(head):
        return int(m[1]) * 3600.0 + int(m[2]) * 60 + int(m[3]) + _fraction(m[4]), "day", m.end()
    if m := _EPOCH.match(head):
        return int(m[1]) + _fraction((m[2] or "") + (m[3] or "")), "abs", m.end()
    return None, "", 0


def parse(raw: bytes) -> Line:
    """One raw line as typed parts."""
    text = decode(raw)
    time, clock, end = time_of(text)
    rank_match = _RANK.search(text[:200])
    rank = next((int(g) for g in rank_match.groups() if g is not None), None) if rank_match else None
    rest = text[end:].removeprefix("]").removeprefix(" ") if end else text
    prefix = _PREFIX.match(rest)
    return Line(text, rest[prefix.end():] if prefix else rest, time, clock, rank)


def rank_of_file(name: str) -> int | None:
    """The rank that a file name such as rank3.log names."""
    m = _FILE_RANK.search(name.replace("\\", "/").rsplit("/", 1)[-1])
    return int(m[1]) if m else None
