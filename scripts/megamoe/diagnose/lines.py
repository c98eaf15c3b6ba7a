"""What a log line says about time, rank and text, whatever wrote it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

LINE_CAP = 4096  # characters of a line that are looked at
RAW_CAP = 2 * LINE_CAP  # bytes of a line that are decoded
DAY_S = 86400.0

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_JUNK = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufffd]")
_ISO = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")
_MONTH_DAY = re.compile(r"(?<!\d)(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_SYSLOG = re.compile(r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+(\d{1,2}) "
                     r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_GLOG = re.compile(r"(?<![A-Za-z0-9])[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_UPTIME = re.compile(r"^(?:<\d{1,3}>)?\[ *(\d{1,8}\.\d{1,6})\](?=[\s:])")
_CLOCK = re.compile(r"(?<![\d:.])([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,](\d{1,9}))?(?![\d:])")
_EPOCH = re.compile(r"^[\[(]?(1[0-9]{9})(\d{3}|\d{6}|\d{9})?(?:\.(\d{1,9}))?[\])]?(?=[\s:|])")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_RANK = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:global|local|dp|ep|tp|world)?[_ -]?rank[_ :=#-]{0,2}(\d{1,4})(?![\d.])"
    r"|model ?runner(\d{1,3})(?=/\d)"
    # Of several coordinates the one that counts all GPUs: EP where it is given, TP in SGLang's "DP1 TP3".
    r"|(?:worker|scheduler)?[_ -]?(?:DP\d{1,3}[ _])?(?:TP\d{1,3}[ _])?EP[_ ]?(\d{1,3})(?![\d.A-Za-z])"
    r"|DP\d{1,3} TP(\d{1,3})(?![\d.A-Za-z])"
    r"|(?:DP|EP)[_ ]?(\d{1,3})(?![\d.A-Za-z])"
    r"|(?:worker|scheduler|gpu_?worker)[_ -]?(?:TP|DP|EP)?[_ -]?(\d{1,3})(?![\d.])|TP[_ ]?(\d{1,3})(?![\d.A-Za-z])"
    r"|R(\d{1,3})(?=[\]:|>]))", re.I)
# What launchers and collectors put in front: srun -l, mpirun --tag-output, RFC 5424.
_LABEL = re.compile(r"^ ?(\d{1,4}): |^\[\d{1,6},(\d{1,4})\]<std(?:out|err)>: ?")
_RFC5424 = re.compile(r"^<\d{1,3}>1 \S+ \S+ \S+ \S+ \S+ (?:-|(?:\[[^\]]*\])+) ?")
_FILE_RANK = re.compile(r"(?:rank|dp|ep|worker)[_.-]?(\d{1,3})(?!\d)", re.I)
_PREFIX = re.compile(
    r"^(?:\s*(?:\[[^\]]{0,80}\]:?|\([^)]{0,80}\)|\{[^{}]{0,300}\}|[<|]?(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|E|W|I)\b[:|>]?"
    r"|(?:[\w.-]{1,60} )?[\w./-]{1,60}\[\d+\]:|std(?:out|err) [FP]\b|[\w.@-]{1,80} +\|"
    r"|(?:global|local|dp|ep|tp)?_?rank[ _:=-]?\d{1,4}[:|>\]]?|\|)\s?)+", re.I)


# What a client sent is shown in some logs, and no word of it says anything about the server. Engines write it with
# repr, so it stands behind one of these names and a quote or bracket (vLLM: prompt: '...', SGLang: text='...').
_CLIENT = re.compile(r"""\b(?:prompts?|messages|text|content|input_text|generated_text|question|query)"""
                     r"""['"]?\s?[:=]\s?(?=b?['"\[{(])""")
_ACCESS = re.compile(r"""(["'])(GET|POST|PUT|HEAD|DELETE|OPTIONS|PATCH) (\S{0,2000}) HTTP/[\d.]+\1 (\d{3})\b([^"']*)""")
_OWN_PATH = re.compile(r"/(?:v1/(?:(?:chat/)?completions|messages|responses|models)|generate\b|health\w*|metrics)")


@dataclass(frozen=True, slots=True)
class Line:
    """`time` in seconds on the scale of `clock` (abs, naive, day, syslog, up or ""); `body` keeps its indentation."""

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


def without_client_words(text: str) -> str:
    """The line less what a client wrote in it: prompts, and the path of a request that is none of the server's own."""
    if " HTTP/" in text and (m := _ACCESS.search(text)):
        own = _OWN_PATH.match(m[3])
        text = f'{text[:m.start()]}"{m[2]} {own[0] if own else "/..."} HTTP/1.1" {m[4]}{m[5]}'
    if m := _CLIENT.search(text):
        return text[:m.end()] + "[...]"
    return text


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
    for pattern in (_SYSLOG, _MONTH_DAY, _GLOG):
        if m := pattern.search(head):
            month = _MONTHS.index(m[1]) + 1 if pattern is _SYSLOG else int(m[1])
            seconds = (month * 31 + int(m[2])) * DAY_S + int(m[3]) * 3600.0 + int(m[4]) * 60 + int(m[5])
            return seconds + _fraction(m[6]), "syslog", m.end()
    if m := _CLOCK.search(head):
        return int(m[1]) * 3600.0 + int(m[2]) * 60 + int(m[3]) + _fraction(m[4]), "day", m.end()
    if m := _EPOCH.match(head):
        return int(m[1]) + _fraction((m[2] or "") + (m[3] or "")), "abs", m.end()
    if m := _UPTIME.match(head):
        return float(m[1]), "up", m.end()
    return None, "", 0


def on_scale(time: float, clock: str, scale: str) -> float:
    """A time on a coarser clock's scale: months and days (syslog), or the time of day.

    Zones that a log does not say are taken for UTC, which containers run on.
    """
    if scale == "day":
        return time % DAY_S
    if scale == "syslog" and clock in ("abs", "naive"):
        when = datetime.fromtimestamp(time, UTC)
        return (when.month * 31 + when.day) * DAY_S + time % DAY_S
    return time


def parse(raw: bytes) -> Line:
    """One raw line as typed parts."""
    text = decode(raw)
    time, clock, end = time_of(text)
    rank_match = _RANK.search(text[:200])
    rank = next((int(g) for g in rank_match.groups() if g is not None), None) if rank_match else None
    text = without_client_words(text)
    label = _LABEL.match(text)
    if label and rank is None:
        rank = int(label[1] or label[2])
    front = max(end, label.end() if label else 0)
    opening = text.rfind("[", 0, end)  # "[2026-12-01 10:00:00 DP1 TP3] text"
    if opening >= 0 and "]" not in text[opening:end] and (close := text.find("]", end, end + 60)) >= 0:
        front = max(front, close + 1 + text.startswith(" ", close + 1))
    if text.startswith("<") and (syslog := _RFC5424.match(text)):
        front = max(front, syslog.end())
    rest = text[front:] if front > end else text[end:].removeprefix("]").removeprefix(" ") if end else text
    prefix = _PREFIX.match(rest)
    return Line(text, rest[prefix.end():] if prefix else rest, time, clock, rank)


def rank_place(raw: bytes) -> slice | None:
    """Where the digits of a line's rank stand, in a line of plain ASCII; None when it is not one or names none."""
    m = _RANK.search(raw[:200].decode("ascii")) if raw[:200].isascii() and b"\x1b" not in raw else None
    if m is None or _JUNK.search(m.string):
        return None
    return next(slice(*m.span(i)) for i, found in enumerate(m.groups(), start=1) if found is not None)


def rank_of_file(name: str) -> int | None:
    """The rank that a file name such as rank3.log names."""
    m = _FILE_RANK.search(name.replace("\\", "/").rsplit("/", 1)[-1])
    return int(m[1]) if m else None
