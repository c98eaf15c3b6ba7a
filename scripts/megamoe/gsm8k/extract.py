"""Answer extraction and scoring of the task gsm8k, version 3, in the standard library alone.

lm-evaluation-harness is the engine; these functions score the same answers while it runs (running accuracy, early
stop) and prove parity on published solutions. The rules restate the task's published configuration:
lm_eval/tasks/gsm8k/gsm8k.yaml, version 3.0 (two regex filters, take_first, exact_match with four ignored patterns).
This file is also imported by harness.py inside lm-eval's own environment, so it imports nothing of megamoe.
"""

from __future__ import annotations

import re

TASK_VERSION = 3
INVALID_ANSWER = "[invalid]"
STOP_STRINGS = ("Question:", "</s>", "<|im_end|>")
_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = tuple(re.compile(p) for p in (",", r"\$", r"(?s).*#### ", r"\.$"))


def strict_match(text: str) -> str:
    """The number after the first "#### ", or "[invalid]"."""
    found = _STRICT.search(text)
    return found.group(1).strip() if found else INVALID_ANSWER


def flexible_extract(text: str) -> str:
    """The last number-like run of characters anywhere in the text, or "[invalid]"."""
    found = _FLEXIBLE.findall(text)
    if not found:
        return INVALID_ANSWER
    return str(next(group for group in found[-1] if group)).strip()


FILTERS = {"strict-match": strict_match, "flexible-extract": flexible_extract}


def normalise(answer: str) -> str:
    """What exact_match compares: no commas, dollars, text up to the last "#### ", final dot; lower case."""
    for pattern in _IGNORED:
        answer = pattern.sub("", answer)
    return answer.lower()


def is_correct(extracted: str, target: str) -> bool:
    """exact_match of one extracted answer with the target text (a whole GSM8K solution ending in "#### N")."""
    return normalise(extracted) == normalise(target)


def is_empty(text: object) -> bool:
    """No answer at all: not text (a null content), or nothing but white space and NUL characters."""
    return not isinstance(text, str) or not text.replace("\x00", "").strip()
