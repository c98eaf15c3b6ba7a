"""The pre-filter never hides a line that its rule's pattern would match: every alternative holds a needle."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megamoe.diagnose.catalogue import Rule, rules
from megamoe.diagnose.lines import LINE_CAP, parse
from megamoe.diagnose.scan import _EXCEPTION

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


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r.id)
def test_no_line_keeps_a_pattern_busy(rule: Rule) -> None:
    """A line may repeat what a pattern looks for a thousand times: two of them once took ten seconds for that."""
    for part in (*rule.needles, *rule.examples, *(e[:-1] for e in rule.examples)):
        text = (part * LINE_CAP)[:LINE_CAP]
        begin = time.process_time()
        rule.matches(text)
        assert time.process_time() - begin < 0.25, part


@pytest.mark.parametrize("part", ["[a] ", "(a) ", "[", " ", "| ", "{", "a", "A", "A.", "rank ", "rank 1", "DP1 TP1 ",
                                  "INFO ", "x.y[1]: ", "moe-0 ", "prompt: ", "'GET ", '"GET /', "time=a ", "1: "])
def test_no_line_keeps_the_reader_busy(part: str) -> None:
    text = (part * LINE_CAP)[:LINE_CAP]
    begin = time.process_time()
    parse(text.encode())
    _EXCEPTION.match(text)
    assert time.process_time() - begin < 0.25
