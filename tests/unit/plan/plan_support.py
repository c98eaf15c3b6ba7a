"""The BASE deploy file of the cases, and how to patch and judge it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml
from megamoe.deploy.load import parse_deploy
from megamoe.envelope import Outcome
from megamoe.plan.judge import outcome_of

BASE: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "cases" / "base.yml").read_text())


class _Drop:
    """Marks a key to be left out. Its name is the same in every process, so that test ids are, too."""

    def __repr__(self) -> str:
        return "DROP"


DROP = _Drop()


def patched(**changes: Any) -> dict[str, Any]:
    """BASE with dotted keys (written with __) set, or removed when the value is DROP."""
    raw = copy.deepcopy(BASE)
    for key, value in changes.items():
        *parents, last = key.split("__")
        node = raw
        for part in parents:
            node = node[part]
        if value is DROP:
            node.pop(last)
        else:
            node[last] = value
    return raw


def plan(facts: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    return outcome_of(parse_deploy(yaml.safe_dump(patched(**changes))), facts or {})


def codes(outcome: Outcome, severity: str = "error") -> set[str]:
    return {f.code for f in outcome.findings if f.severity == severity}
