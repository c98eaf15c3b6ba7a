#!/usr/bin/env python3
"""Parity of our extraction and scoring with lm-evaluation-harness and with published marks.

    scripts/parity_gsm8k.py EXAMPLE_MODEL_SOLUTIONS.jsonl

The file has, per question, four solutions with the publisher's mark. They end in "A: N" where the task's few-shot
format ends in "#### N", so each is rewritten before scoring. With lm-eval importable, its own filters and metric score
the same texts and must agree on all of them. Prints counts and each disagreement; exit 1 when one of them is ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "megamoe" / "gsm8k"))
from extract import FILTERS, is_correct


def texts(row: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """(model, solution in the task's form, publisher's mark) of each solution of a row."""
    return [
        (k, v["solution"].replace("\nA: ", "\n#### "), bool(v["is_correct"]))
        for k, v in row.items()
        if isinstance(v, dict) and "solution" in v
    ]


def explain(name: str, text: str, target: str, ours: bool) -> str | None:
    """Why the publisher's mark differs from the filter's; None when nothing but a fault of ours would explain it."""
    answer = FILTERS["strict-match"](text)
    truth = FILTERS["strict-match"](target)
    if answer == "[invalid]":
        return "the solution gives no final answer, so flexible-extract takes another number"
    numbers = []
    for value in (answer, truth):
        try:
            numbers.append(float(value.replace(",", "").rstrip(".")))
        except ValueError:
            return "the final answer is not a plain number"
    if not ours and numbers[0] == numbers[1]:
        return "the numbers are equal but written differently (5 and 5.00): exact_match compares text"
    if name == "flexible-extract":
        return "text after the final answer holds another number, which flexible-extract takes"
    return None


def main() -> int:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines() if line.strip()]
    try:
        from lm_eval.api.metrics import exact_match_hf_evaluate
        from lm_eval.filters.extraction import RegexFilter

        engine = {
            "strict-match": RegexFilter(r"#### (\-?[0-9\.\,]+)"),
            "flexible-extract": RegexFilter(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1),
        }
    except ImportError:
        engine = {}
        print("lm-eval is not importable here: run with its environment's python to compare with it")
    total = agree_engine = 0
    reasons: dict[str, int] = {}
    unexplained = 0
    for row in rows:
        target = row["ground_truth"].replace("\nA: ", "\n#### ")
        for model, text, mark in texts(row):
            total += 1
            for name, extract in FILTERS.items():
                found = extract(text)
                ours = is_correct(found, target)
                if engine:
                    theirs = engine[name].apply([[text]], [{}])[0][0]
                    score = bool(
                        exact_match_hf_evaluate(
                            [theirs], [target], regexes_to_ignore=[",", r"\$", r"(?s).*#### ", r"\.$"], ignore_case=True
                        )["exact_match"]
                    )
                    if (theirs, score) != (found, ours):
                        unexplained += 1
                        print(f"lm-eval disagrees ({name}, {model}): {found!r} {ours} against {theirs!r} {score}")
                    else:
                        agree_engine += 1
                if ours != mark:
                    why = explain(name, text, target, ours)
                    reasons[f"{name}: {why}"] = reasons.get(f"{name}: {why}", 0) + 1
                    if why is None:
                        unexplained += 1
                        print(f"unexplained ({name}, {model}): {text[-80:]!r} target {target[-20:]!r} mark {mark}")
    print(f"{total} solutions; lm-eval agrees on {agree_engine} of {2 * total if engine else 0} extractions and scores")
    for why, count in sorted(reasons.items()):
        print(f"{count:5d} differ from the published mark: {why}")
    print(f"{unexplained} unexplained")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
