"""Facts of any shape to typed values: what has another type counts as absent, and absent is unknown."""

from __future__ import annotations

import re
from typing import Any

from megamoe.envelope import Finding, Severity

Facts = dict[str, Any]


class Recorded(dict[str, Any]):
    """Facts that know which of them were read: what no judge reads was not judged. Iterating reads only names."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        if key in self:
            self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


def finding(code: str, severity: Severity, what: str, why: str, fix: str) -> Finding:
    return Finding(code, severity, what, why, fix)


def unknown(code: str, what: str, why: str, fix: str, severity: Severity = "info") -> Finding:
    """A fact that nobody could give. Codes of these start with UNKNOWN_."""
    return Finding(f"UNKNOWN_{code}", severity, what, why, fix)


def num(value: object) -> float | None:
    """A number, also one written as text (as /proc has it); None for anything else, booleans too."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}(\.\d{1,9})?", value.strip(), re.ASCII):
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def rows(value: object) -> list[dict[str, Any]] | None:
    """The mappings of a list; None when it is no list."""
    return [r for r in value if isinstance(r, dict)] if isinstance(value, list) else None


def text(value: object, limit: int = 80) -> str:
    return str(value)[:limit] if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def gib(count: float) -> str:
    return f"{count / (1 << 30):.0f} GiB"
