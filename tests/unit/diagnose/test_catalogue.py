"""The catalogue is consistent with itself."""

from __future__ import annotations

import pytest
from megamoe.diagnose.catalogue import KINDS, Rule, advice, rules


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r.id)
def test_a_rule_matches_its_examples_first_and_never_its_counter_examples(rule: Rule) -> None:
    assert rule.kind in KINDS
    assert rule.examples
    assert rule.counter
    for text in rule.examples:
        assert next(r for r in rules() if r.matches(text)) is rule
        assert any(needle in text.lower() for needle in rule.needles), "the pre-filter would skip this line"
    assert not any(rule.matches(text) for text in rule.counter)


def test_every_class_says_what_why_what_to_do_and_where_it_comes_from() -> None:
    assert all(a.what and a.why and a.fix and a.source for a in advice().values())
