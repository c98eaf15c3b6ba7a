"""One pytest run imports every test folder, so each Python file of the tests needs a name of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def test_no_two_files_of_the_tests_have_one_name() -> None:
    names = Counter(p.name for p in Path(__file__).resolve().parents[1].rglob("*.py") if p.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
