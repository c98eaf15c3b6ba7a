"""Facts about the sample lines of one filter: duplicates, gaps, empties, truncations, lost answers. Pure functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from megamoe_atom.problem import Reason

from megamoe.gsm8k.extract import INVALID_ANSWER, is_empty


@dataclass(frozen=True, slots=True)
class SampleFacts:
    n: int
    right: int
    empty: int
    truncated: int
    truncation_known: bool
    failed: int  # no answer at all: None, or a recorded transport error
    unparsed: int  # answered, but the filter found no number
    garbage: int  # one repeated character
    right_by_doc: dict[int, bool]
    prompt_by_doc: dict[int, str]


def answer_of(row: dict[str, Any]) -> Any:
    """The first response of a sample line: lm-eval nests them as [[text]]."""
    value = row.get("resps")
    while isinstance(value, list):
        value = value[0] if value else None
    return value


def summarise(rows: list[dict[str, Any]], policy_filter: str, metric: str) -> tuple[SampleFacts, list[Reason]]:
    """Counts and faults of the lines that belong to the policy's filter."""
    mine = [r for r in rows if r.get("filter", policy_filter) == policy_filter]
    faults: list[Reason] = []
    if not mine:
        names = sorted({str(r.get("filter")) for r in rows})
        faults.append(
            Reason(
                "SAMPLES_FILTER",
                f"no sample line has the filter {policy_filter!r} (found: {names})",
                "the answers judged by the policy are not in this file",
                "give the samples of the same evaluation and filter",
            )
        )
    ids: list[int] = []
    odd = 0
    right_by_doc: dict[int, bool] = {}
    prompts: dict[int, str] = {}
    empty = truncated = failed = unparsed = garbage = 0
    truncation_known = bool(mine)
    for row in mine:
        doc = row.get("doc_id")
        score = row.get(metric)
        if isinstance(doc, bool) or not isinstance(doc, int) or doc < 0 or score not in (0, 1, 0.0, 1.0):
            odd += 1
            continue
        ids.append(doc)
        right_by_doc[doc] = bool(score)
        prompts[doc] = str(row.get("doc_hash") or "")
        text = answer_of(row)
        if row.get("error") or ("resps" in row and text is None):
            failed += 1
        elif is_empty(text):
            empty += 1
        elif len(set(text.strip())) == 1 and len(text.strip()) > 8:
            garbage += 1
        elif _first(row.get("filtered_resps")) == INVALID_ANSWER:
            unparsed += 1
        if "finish_reason" not in row:
            truncation_known = False
        elif row["finish_reason"] in ("length", "max_tokens"):
            truncated += 1
    if odd:
        faults.append(
            Reason(
                "SAMPLES_SHAPE",
                f"{odd} of {len(mine)} sample lines lack a doc_id or a {metric} of 0 or 1",
                "they cannot be counted, and leaving them out would change the score",
                "give the samples file as lm-evaluation-harness wrote it",
            )
        )
    twice = sorted(d for d, c in Counter(ids).items() if c > 1)
    if twice:
        faults.append(
            Reason(
                "SAMPLES_DUPLICATE",
                f"{len(twice)} documents are answered more than once (first: {twice[:3]})",
                "a question that counts twice moves the score",
                "give the samples of one run; do not join files",
            )
        )
    facts = SampleFacts(
        len(ids),
        sum(right_by_doc.values()),
        empty,
        truncated,
        truncation_known,
        failed,
        unparsed,
        garbage,
        right_by_doc,
        prompts,
    )
    return facts, faults


def _first(value: Any) -> Any:
    while isinstance(value, list):
        value = value[0] if value else None
    return value
