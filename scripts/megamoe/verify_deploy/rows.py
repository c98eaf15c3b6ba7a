"""One compared field: the same, different, or not known. Nothing unknown is ever counted as the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["same", "drift", "unknown"]
MISSING: Any = object()  # a key that the inspection does not have; null is something else


@dataclass(frozen=True, slots=True)
class Row:
    """One compared field; planned and running are shown as text."""

    field: str
    state: State
    planned: str
    running: str


def compared(field: str, planned: Any, running: Any, same: bool) -> Row:
    return Row(field, "same" if same else "drift", str(planned), str(running))


def unknown(field: str, planned: Any, why: str = "not in the inspection") -> Row:
    return Row(field, "unknown", str(planned), why)


def simple(field: str, planned: Any, running: Any) -> Row:
    """A text, number or switch; null is what an engine prints for "not set by hand", so it is unknown."""
    if running is MISSING or running is None:
        return unknown(field, planned)
    if type(running) is not type(planned):  # true is not 1, and "60" is not 60: no engine prints those
        return unknown(field, planned, f"{running!r:.60} is not of the form that an engine prints")
    return compared(field, planned, running, running == planned)


def words(field: str, planned: list[str], running: Any) -> Row:
    """A set of words; order and repetition mean nothing. null is none, as engines print an empty list."""
    shown = ", ".join(sorted(planned)) or "none"
    if running is MISSING:
        return unknown(field, shown)
    if running is not None and not isinstance(running, list):
        return unknown(field, shown, f"{running!r:.60} is not a list")
    have = sorted({str(x) for x in running or []})
    return compared(field, shown, ", ".join(have) or "none", set(have) == set(planned))


def mapping(node: dict[str, Any], key: str) -> dict[str, Any]:
    value = node.get(key)
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def is_whole(inspect: dict[str, Any]) -> bool:
    """True for what an engine printed, false for a shortened inspection: engines always print Path.

    What is not in a whole inspection was not set; what is not in a shortened one is unknown.
    """
    return isinstance(inspect.get("Path"), str)
