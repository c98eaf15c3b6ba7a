"""GSM8K-format files: {"question", "answer"} per line, the answer ending in "#### NUMBER". Checked before use."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from megamoe_atom.problem import Problem

from megamoe.text_input import read_text


def load_questions(path: str | Path) -> tuple[list[dict[str, str]], str]:
    """The questions and the file's sha256.

    Raises:
        Problem: a line that is not a question with an answer after "####", a duplicate question, no line at all
            (exit 2, file and line named); unreadable (exit 3).
    """
    text = read_text(path, max_bytes=64 << 20)
    rows: list[dict[str, str]] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            row = None
        good = isinstance(row, dict) and all(
            isinstance(row.get(k), str) and row[k].strip() for k in ("question", "answer")
        )
        if not good or "#### " not in row["answer"]:
            raise Problem(
                "dataset_line",
                what=f"{path}:{number}: not a question with an answer after '#### ': {line[:80]!r}",
                why="leaving the line out would change the question set without a word",
                fix="correct or remove that line",
            )
        if row["question"] in seen:
            raise Problem(
                "dataset_duplicate",
                what=f"{path}:{number}: the same question as line {seen[row['question']]}",
                why="a question that counts twice moves the score",
                fix="remove one of them",
            )
        seen[row["question"]] = number
        rows.append({"question": row["question"], "answer": row["answer"]})
    if not rows:
        raise Problem(
            "dataset_empty",
            what=f"{path} holds no question",
            why="there is nothing to ask",
            fix="give a GSM8K-format JSONL file",
        )
    return rows, hashlib.sha256(text.encode("utf-8")).hexdigest()


def check_counts(questions: int, examples: int, shots: int, limit: int | None, required: int) -> None:
    """What is asked for against what the files hold.

    Raises:
        Problem: more questions or examples are asked for than there are, or the policy can never be met (all exit 2).
    """
    if limit is not None and limit > questions:
        raise Problem(
            "limit_too_large",
            what=f"--limit {limit} is larger than the data set of {questions} questions",
            why="questions would be missing without a word",
            fix=f"use at most --limit {questions}",
        )
    if limit is None and required > questions:
        raise Problem(
            "dataset_too_small",
            what=f"the policy requires {required} questions, the data set has {questions}",
            why="the gate would call such a run INVALID after all its questions were asked",
            fix="give the whole file; for a trial run say so with --limit, for a second stage with --further",
        )
    if shots > examples:
        raise Problem(
            "fewshot_too_few",
            what=f"{shots} shots from {examples} examples",
            why="the prompt needs them all",
            fix="give a larger --fewshot file",
        )
