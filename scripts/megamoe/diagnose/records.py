"""The lines inside a record: docker's json-file, journald, structured logs, logfmt."""

from __future__ import annotations

import json
import re
from typing import Any

from megamoe.diagnose.lines import RAW_CAP

JSON_CAP = 1 << 16  # bytes of a JSON record that are parsed: a whole stack may be in it
NESTING = 3  # docker's record around a structured log around a stack

_FRAME = re.compile(rb"[\x00-\x02]\x00\x00\x00[\x00-\xff]{4}")
# What a client sent, and what names the process: no word of the server's.
_CLIENT_KEYS = frozenset((
    "prompt", "prompts", "messages", "content", "input", "inputs", "input_text", "query", "question", "completion",
    "response", "output", "generated_text", "request", "body", "path", "uri", "url", "user_agent", "useragent",
    "referer", "headers", "user", "_cmdline", "_exe", "_comm"))
_TIME_KEYS = ("time", "timestamp", "ts", "asctime", "@timestamp", "__realtime_timestamp")
_RANK_KEYS = ("rank", "_rank", "dp_rank", "ep_rank", "tp_rank")
_NESTED = ("error", "err", "exception", "exc", "exc_info", "jsonpayload")
LOGFMT = re.compile(rb"^(?:time|ts|t|level|lvl)=")
_PAIR = re.compile(r'([\w.@-]{1,60})=("(?:[^"\\]|\\.)*"|\S*)')


def unwrap(raw: bytes, depth: int = NESTING) -> list[bytes]:
    """The lines inside one line: docker's json-file records and structured logs carry text, and stacks, as JSON.

    A record's time and rank lead each of its lines. What a client sent is left out. Anything that is neither a JSON
    object nor logfmt stays as it is, less the frame of docker's raw stream: stream number, three zeros, four bytes of
    length.
    """
    if _FRAME.match(raw):
        raw = raw[8:]
    if LOGFMT.match(raw):
        pairs = _PAIR.findall(raw[:RAW_CAP].decode("utf-8", "replace"))
        record: Any = {k: _unquoted(v) for k, v in pairs}
        if not {"msg", "message", "err", "error"} & record.keys():
            return [raw]
    elif raw.startswith(b"{") and raw.rstrip().endswith(b"}"):
        try:
            record = json.loads(raw)
        except (ValueError, RecursionError):
            return [raw]
    else:
        return [raw]
    fields = {str(k).lower(): v for k, v in record.items()}
    lead = next((stamp for k in _TIME_KEYS if (stamp := _stamp(fields.pop(k, None)))), "")
    rank = next((r for k in _RANK_KEYS if (r := _rank_value(fields.get(k))) is not None), None)
    lead += f"[rank {rank}] " if rank is not None else ""
    lines = []
    for text in _texts(fields):
        for line in text.splitlines():
            if line.strip():
                inner = line.lstrip().encode("utf-8", "replace") if line.lstrip().startswith("{") else b""
                found = unwrap(inner, depth - 1) if inner and depth > 0 else [inner]
                lines += [lead.encode() + each for each in found] if found != [inner] else [
                    (lead + line).encode("utf-8", "replace")]
    return lines or [raw]


def _texts(fields: dict[str, Any]) -> list[str]:
    """The texts of a record that its own program wrote, one level deep; journald gives bytes as a list of numbers."""
    out = []
    for key, value in fields.items():
        # OpenTelemetry's body is the message, any other one is a request's; loguru's text is its whole line.
        message = (key == "body" and any(k.startswith("severity") for k in fields)) or (
            key == "text" and "record" in fields)
        if not message and (key in _CLIENT_KEYS or key == "text"):
            continue
        if isinstance(value, str):
            out.append(value)
        elif isinstance(value, list) and value and all(isinstance(v, int) and 0 <= v < 256 for v in value):
            out.append(bytes(value).decode("utf-8", "replace"))
        elif isinstance(value, dict) and (key in _NESTED or message):
            out += [v for k, v in value.items() if isinstance(v, str) and str(k).lower() not in _CLIENT_KEYS]
    return out


def _stamp(value: Any) -> str:
    """A record's time as the lead of a line; "" when it holds none."""
    if isinstance(value, str) and value.strip():
        return value.strip()[:40] + " "
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1e9 <= value < 1e20:
        return f"{value:.6f} " if isinstance(value, float) else f"{value} "
    return ""


def _rank_value(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 4:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10000 else None


def _unquoted(value: str) -> str:
    if value[:1] != '"':
        return value
    return value[1:-1].replace('\\"', '"').replace("\\n", "\n").replace("\\t", "\t")
