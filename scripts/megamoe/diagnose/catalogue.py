"""The catalogue as typed data. One TOML file; nothing about a class is written anywhere else."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

CATALOGUE = Path(__file__).with_name("catalogue.toml")
KINDS = ("cause", "victim", "unknown", "risk", "warn", "benign", "marker")


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of line. Fields as explained at the top of catalogue.toml."""

    id: str
    kind: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None
    context: str
    recovers: bool
    soft: bool
    request: bool
    what: str
    why: str
    fix: str
    source: str
    examples: tuple[str, ...]
    counter: tuple[str, ...]

    def matches(self, text: str) -> bool:
        return bool(self.pattern.search(text)) and not (self.unless and self.unless.search(text))


@dataclass(frozen=True, slots=True)
class Advice:
    """What a person is told about a class."""

    id: str
    what: str
    why: str
    fix: str
    source: str
    when: str


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """All line rules in catalogue order: of several that match a line, the first wins."""
    return tuple(
        Rule(r["id"], r["kind"], tuple(r["needles"]), re.compile(r["pattern"], re.I),
             re.compile(r["unless"], re.I) if "unless" in r else None, r.get("context", ""), r.get("recovers", False),
             r.get("soft", False), r.get("request", False),
             r["what"], r["why"], r["fix"], r["source"], tuple(r["examples"]), tuple(r["counter"]))
        for r in tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))["rule"])


@lru_cache(maxsize=1)
def advice() -> dict[str, Advice]:
    """Class -> advice, for line classes and derived ones."""
    raw = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    out = {r.id: Advice(r.id, r.what, r.why, r.fix, r.source, "") for r in rules()}
    for d in raw["derived"]:
        out.setdefault(d["id"], Advice(d["id"], d["what"], d["why"], d["fix"], d["source"], d["when"]))
    return out
