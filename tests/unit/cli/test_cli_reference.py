"""The reference page says what the commands say, and the shell can complete them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from megamoe.cli import existing_verbs
from megamoe.reference import page

PAGE = Path(__file__).parents[3] / "scripts" / "docs" / "cli.md"


def test_the_page_is_what_the_commands_say_now() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m megamoe.reference > scripts/docs/cli.md`"


def test_every_verb_and_every_exit_code_is_on_the_page_and_every_verb_takes_json() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for verb in existing_verbs():
        part = text.split(f"\n## megamoe {verb}\n")[1].split("\n## ")[0]
        assert "--json" in part, verb
    assert all(f"| {code} |" in text for code in (0, 1, 2, 3, 4, 5, 70, 130))


def complete(words: str) -> list[str]:
    env = {**os.environ, "_MEGAMOE_COMPLETE": "complete_bash", "COMP_WORDS": words,
           "COMP_CWORD": str(len(words.split(" ")) - 1)}  # fmt: skip
    done = subprocess.run([str(Path(sys.executable).with_name("megamoe"))], env=env, capture_output=True, text=True,
                          timeout=120)  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(("words", "wanted"), [
    ("megamoe verify-", {"verify-model", "verify-deploy"}),
    ("megamoe plan --sch", {"--schema"}),
    ("megamoe plan --explain heap_too", {"heap_too_small"}),
    ("megamoe verify-model --profile deepseek-v4-p", {"deepseek-v4-pro"}),
])  # fmt: skip
def test_the_shell_completes_verbs_options_and_values(words: str, wanted: set[str]) -> None:
    assert set(complete(words)) == wanted


def test_the_page_holds_nothing_of_the_machine_that_made_it() -> None:
    # A default such as this Python's path made the page true on one machine alone.
    assert str(Path(sys.executable).parent) not in page()
