"""The documentation page is what the catalogue says."""

from __future__ import annotations

from pathlib import Path

from megamoe.diagnose.page import page


def test_the_page_is_up_to_date() -> None:
    path = Path(__file__).parents[3] / "scripts" / "docs" / "diagnose.md"
    have = path.read_text(encoding="utf-8")
    assert have == page(), "run `python -m megamoe.diagnose.page > scripts/docs/diagnose.md`"
