"""Prompts of an exact number of tokens: one per kernel bucket, and the context limit from both sides."""

from __future__ import annotations

import random
import re
from typing import Any

import httpx
from megamoe_atom.warmup import token_buckets as buckets_up_to

from megamoe.smoke.ask import Target, complete, garbage

# One token each in the tokenizers of the models served here; where not, the server's own count corrects it.
_WORDS = re.findall(
    r"\w+",
    """time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work number night point home water room mother area money
    story fact month lot right study book eye job word business issue side kind head house service friend father power
    hour game line end member law car city name president team minute idea body information back parent face others
    level office door health person art war history party result change morning reason research moment air teacher""",
)


def words(target: Target, count: int, kind: str) -> str:
    """`count` words that share no beginning with another smoke's or another kind's: a cached prefix runs no kernel."""
    pick = random.Random(f"{target.seed} {kind} {count}")
    return "".join(" " + pick.choice(_WORDS) for _ in range(max(count, 1)))


def prompt_tokens(response: httpx.Response) -> int:
    response.raise_for_status()
    return int(response.json()["usage"]["prompt_tokens"])


def _cached(response: httpx.Response) -> int:
    details: Any = response.json()["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def added_tokens(target: Target) -> int:
    """How many tokens the server adds to a text (a start-of-text token)."""
    return prompt_tokens(complete(target, " the" * 32, 1)) - 32


def token_buckets(target: Target) -> tuple[str, str]:
    """One prompt of exactly 1, 2, 4, ... tokens up to the largest step: each chooses another kernel variant."""
    room = target.max_batched if target.max_model_len is None else min(target.max_batched, target.max_model_len - 2)
    extra = added_tokens(target)
    hit: list[int] = []
    near: list[str] = []
    cached = 0
    wanted = [size for size in buckets_up_to(target.max_batched) if extra < size <= room]
    for size in wanted:
        count = size - extra
        for attempt in range(9):  # words of two tokens are corrected by the server's own count, and drawn anew
            response = complete(target, words(target, count, f"bucket {attempt}"), 2)
            if response.status_code == 400 and target.max_model_len is None and hit:
                return "warn", (
                    f"prompts of {', '.join(map(str, hit))} tokens answered; {size} are refused with 400: "
                    "pass --max-model-len if that is meant"
                )
            seen = prompt_tokens(response)
            bad = garbage(response.json()["choices"][0]["text"] or "")
            if bad and "NUL" in bad:
                return "fail", f"at {seen} prompt tokens: {bad}"
            if seen == size or (attempt > 1 and size // 2 < seen < size):
                break
            aim = size if attempt < 1 else max(size * 7 // 8, size // 2 + 1)  # of 2, seven eighths would be 1 for good
            count = max(1, round(count * aim / seen))
        cached += _cached(response)
        if seen == size:
            hit.append(size)
        # The bucket of n tokens is the next power of two: it is hit as well by a count between half of it and itself.
        elif size // 2 < seen < size:
            near.append(f"{seen} for {size}")
        else:
            return "warn", f"a prompt meant to have {size} tokens has {seen}: its bucket was not reached"
    told = (
        f"{len(wanted)} buckets, prompts of {wanted[0]} to {wanted[-1]} tokens answered" if wanted else "no bucket fits"
    )
    if near:
        told += f" (counts: {', '.join(near)})"
    if cached > sum(wanted) // 20:
        return "warn", f"{told}; but {cached} of their tokens came from the prefix cache and ran no kernel"
    skipped = [size for size in buckets_up_to(target.max_batched) if size > room]
    if skipped:
        told += f"; {', '.join(map(str, skipped))} do not fit max_model_len {target.max_model_len}"
    return ("pass" if wanted else "not_run"), told


def told_limit(target: Target) -> int | None:
    """The limit from the refusal of an absurd request; ATOM's /v1/models does not tell it (api_server.py)."""
    with target.http.stream(
        "POST",
        "/v1/completions",
        json={"model": target.model, "prompt": "Hi", "max_tokens": 10**9, "temperature": 0, "stream": True},
    ) as response:
        if response.status_code not in (400, 422):
            return None  # the stream is closed here, which ends the request
        text = response.read().decode("utf-8", "replace")
    found = re.search(r"maximum context length is (\d+)", text) or re.search(r"max_model_len\D{1,20}(\d+)", text)
    return int(found[1]) if found else None


def token_limit(target: Target) -> tuple[str, str]:
    """Prompt and answer of exactly max_model_len tokens are taken, one more is refused; the step limit is no limit."""
    limit = target.max_model_len or told_limit(target)
    if limit is None:
        return "not_run", "the server does not tell its max_model_len; pass --max-model-len"
    extra = added_tokens(target)
    parts = []
    # A long prompt, so that the limit is not only arithmetic: past the step limit (chunked prefill) where that fits.
    longest = min(limit - 2, target.max_batched + max(1, target.max_batched // 8))
    response = complete(target, words(target, longest - extra, "long"), 2)
    if response.status_code != 200:
        return "fail", f"a prompt of {longest} tokens is refused with {response.status_code}; max_model_len is {limit}"
    count = prompt_tokens(response)
    past = ", more than one step takes" if count > target.max_batched else ""
    parts.append(f"a prompt of {count} tokens{past} answered")
    # The boundary itself by max_tokens, as a stream that is dropped: a million tokens need not be generated.
    short = words(target, 32, "edge")
    room = limit - prompt_tokens(complete(target, short, 1))
    for asked, fine in ((room, True), (room + 1, False)):
        with target.http.stream(
            "POST",
            "/v1/completions",
            json={"model": target.model, "prompt": short, "max_tokens": asked, "temperature": 0, "stream": True},
        ) as edge:
            code = edge.status_code
            if fine and code == 200:
                next(edge.iter_lines(), None)
        if fine and code != 200:
            return "fail", f"a request of exactly {limit} tokens in all is refused with {code}"
        if not fine and not 400 <= code < 500:
            return "fail", f"a request of {limit + 1} tokens in all, one over max_model_len, is answered with {code}"
    over = complete(target, words(target, limit + 64 - extra, "over"), 2) if limit <= 1 << 17 else None
    if over is not None and not 400 <= over.status_code < 500:
        return "fail", f"a prompt longer than max_model_len {limit} is answered with {over.status_code}"
    parts.append(f"{limit} tokens in all taken, {limit + 1} refused")
    return "pass", "; ".join(parts)
