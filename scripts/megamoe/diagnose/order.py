"""Which of several events came first, across files and clocks, and how one is quoted."""

from __future__ import annotations

from megamoe.diagnose.lines import on_scale
from megamoe.diagnose.scan import Event

SCALES = ("abs", "naive", "syslog", "day")  # clocks from the finest to the coarsest
QUOTE, LEAD = 400, 120  # characters of a quoted line; of a longer one this much stands before the words that matched


def scale_of(events: list[Event]) -> str:
    """The finest scale on which all these events can be compared; "" when some have no time, or one since boot."""
    clocks = {e.clock for e in events}
    if not events or any(e.time is None for e in events):
        return ""
    if len(clocks) == 1:
        return clocks.pop()
    return max(clocks, key=SCALES.index) if clocks <= set(SCALES) else ""


def in_order(events: list[Event]) -> list[Event]:
    """By time when the stamps of all events can be brought to one scale, else in the order given.

    Within one file time decides too, so that ranks whose output is interleaved late do not change places.
    """
    if scale := scale_of(events):
        if len({e.clock for e in events}) == 1:
            return sorted(events, key=lambda e: (e.time or 0.0, e.order))
        return sorted(events, key=lambda e: (on_scale(e.time or 0.0, e.clock, scale), e.order))
    return sorted(events, key=lambda e: e.order)


def quote(event: Event) -> str:
    """The line, or of a long one its beginning and what stands around the words that matched."""
    found = event.rule.pattern.search(event.text) if event.rule else None
    if len(event.text) <= QUOTE or found is None or found.end() <= QUOTE:
        return event.text[:QUOTE]
    start = found.start() - LEAD // 2
    return f"{event.text[:LEAD]} [...] {event.text[start:start + QUOTE - LEAD]}"
