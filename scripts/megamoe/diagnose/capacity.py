"""What the engine says of its room for KV: too little for one request, for all of them, or less than before.

Log forms: ROCm/ATOM atom/model_engine/model_runner.py ("Concurrent capacity vs context length"); vLLM ("GPU KV cache
size"). The second names no request length, so it is only compared with itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from megamoe.diagnose.catalogue import advice
from megamoe.diagnose.scan import Event
from megamoe.envelope import Finding
from megamoe.text_input import display_name

TYPICAL_TOKENS = 8192  # a request of the benchmarks on record (input length 8192)
CHANGED_SHARE = 0.05  # ROCm/ATOM#2267
_ATOM = re.compile(r"max_model_len=(\d{1,12}), block_size=(\d{1,6}), max_slots=(\d{1,9}), pool_blocks=(-?\d{1,12})")
_VLLM = re.compile(r"KV cache size: ([\d,]{1,20}) tokens", re.I)


@dataclass(frozen=True, slots=True)
class Capacity:
    """One start of one rank, in tokens. longest and slots are 0 where the line does not say them."""

    tokens: int
    longest: int
    slots: int
    event: Event


def _capacity(event: Event) -> Capacity | None:
    if m := _ATOM.search(event.text):
        return Capacity(max(0, int(m[4])) * int(m[2]), int(m[1]), int(m[3]), event)
    if m := _VLLM.search(event.text):
        return Capacity(int(m[1].replace(",", "") or 0), 0, 0, event)
    return None


def kv_findings(events: list[Event]) -> list[Finding]:
    """KV_STARVED (error), KV_SMALL and KV_CHANGED (warn), judged on the last start in the logs."""
    seen = [c for e in events if (c := _capacity(e)) is not None]
    if not seen:
        return []
    last = seen[-1]
    out = []
    typical = min(last.longest, TYPICAL_TOKENS)
    if last.longest and last.tokens < last.longest:
        out.append(_finding("KV_STARVED", "error", f"the KV cache holds {last.tokens} tokens, fewer than one request "
                            f"of max_model_len {last.longest}", last.event))
    elif last.tokens < last.slots * typical:
        out.append(_finding("KV_SMALL", "warn", f"the KV cache holds {last.tokens} tokens; {last.slots} requests of "
                            f"{typical} tokens need {last.slots * typical}", last.event))
    before = next((c for c in reversed(seen[:-1]) if c.event.rank == last.event.rank), None)
    if before is not None and abs(last.tokens - before.tokens) > CHANGED_SHARE * max(before.tokens, 1):
        out.append(_finding("KV_CHANGED", "warn", f"the KV cache holds {last.tokens} tokens, {before.tokens} at the "
                            f"start before ({display_name(before.event.file)}:{before.event.line})", last.event))
    return out


def _finding(code: str, severity: str, what: str, event: Event) -> Finding:
    text = advice()[code]
    return Finding(code, severity, what, text.why, text.fix,  # type: ignore[arg-type]
                   file=display_name(event.file), line=event.line, quote=event.text[:400])
