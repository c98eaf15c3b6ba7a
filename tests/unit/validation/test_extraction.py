"""Extraction and scoring of gsm8k version 3, and parity on the published solutions where they are at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from megamoe.gsm8k.dataset import load_questions
from megamoe.gsm8k.extract import flexible_extract, is_correct, is_empty, strict_match
from megamoe_atom.problem import Problem

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        pytest.param("so 3 + 4 = 7\n#### 7", "7", "7", id="usual"),
        pytest.param("#### 1,234.", "1,234.", "1,234.", id="comma and final dot"),
        pytest.param("it costs $18.", "[invalid]", "$18.", id="no marker"),
        pytest.param("#### -5 and then 9", "-5", "9", id="text after the answer"),
        pytest.param("no number", "[invalid]", "[invalid]", id="none"),
        pytest.param("#### 5 #### 6", "5", "6", id="first strict, last flexible"),
    ],
)
def test_filters_take_what_the_task_file_says(text: str, strict: str, flexible: str) -> None:
    assert (strict_match(text), flexible_extract(text)) == (strict, flexible)


@pytest.mark.parametrize(
    ("answer", "target", "right"),
    [
        ("1,234", "x\n#### 1234", True),
        ("$18.", "#### 18", True),
        ("5.00", "#### 5", False),
        ("[invalid]", "#### 5", False),
    ],
)
def test_exact_match_ignores_commas_dollars_and_a_final_dot(answer: str, target: str, right: bool) -> None:
    assert is_correct(answer, target) is right


@pytest.mark.parametrize(("text", "empty"), [("", True), (" \n", True), ("\x00\x00", True), (None, True), ("0", False)])
def test_no_answer_is_told_from_a_short_one(text: object, empty: bool) -> None:
    assert is_empty(text) is empty


def test_parity_script_finds_no_disagreement(tmp_path: Path) -> None:
    published = Path(
        os.environ.get("MEGAMOE_GSM8K_SOLUTIONS", ROOT.parent / "shared/gsm8k/example_model_solutions.jsonl")
    )
    if not published.exists():  # a sample of ours in the same form
        published = tmp_path / "ours.jsonl"
        published.write_text(
            json.dumps(
                {
                    "question": "2 + 2?",
                    "ground_truth": "2 + 2 = 4\nA: 4",
                    "a": {"is_correct": True, "solution": "2 + 2 is 4\nA: 4"},
                    "b": {"is_correct": False, "solution": "2 + 2 is 5\nA: 5"},
                }
            )
            + "\n"
        )
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/parity_gsm8k.py"), str(published)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert "0 unexplained" in done.stdout and not done.stdout.startswith("0 solutions")


@pytest.mark.parametrize(
    ("line", "code"),
    [("{broken", "dataset_line"), ('{"question": "q", "answer": "no mark"}', "dataset_line"), ("", "dataset_empty")],
)
def test_a_broken_data_set_names_the_line(tmp_path: Path, line: str, code: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(Problem) as caught:
        load_questions(path)
    assert caught.value.code == code and (code == "dataset_empty" or ":1:" in str(caught.value))
