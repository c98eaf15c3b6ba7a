"""The pre-filter never hides a line that its rule's pattern would match: every alternative holds a needle."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megamoe.diagnose.catalogue import Rule, rules

# What decides a verdict. Progress markers and prose only colour it, and some of their patterns are loose on purpose.
DECIDING = [
    r for r in rules() if r.kind in ("cause", "victim", "risk", "warn") or r.id in ("READY", "REQUESTS_FAILING")
]


@pytest.mark.parametrize("rule", DECIDING, ids=lambda r: r.id)
@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_pattern_matches_holds_a_needle(rule: Rule, data: st.DataObject) -> None:
    # Without the flag: the generator would spend its examples on letter case, which the pre-filter ignores anyway.
    text = data.draw(st.from_regex(re.compile(rule.pattern.pattern, re.ASCII), fullmatch=True))
    assert any(needle in text.lower() for needle in rule.needles), text
