"""Inputs by formula: the same numbers on every machine and library version, so that files need only carry outputs.

All values come from one counter-based hash (splitmix64 of seed and index); no library's random generator is involved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_GOLD = np.uint64(0x9E3779B97F4A7C15)


def bits(seed: int, count: int) -> NDArray[np.uint64]:
    """`count` 64-bit values: splitmix64 of (seed, 0..count-1)."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed) * np.uint64(0x2545F4914F6CDD1D)) * _GOLD
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)


def raw_bytes(seed: int, *shape: int) -> NDArray[np.uint8]:
    count = int(np.prod(shape))
    return np.ascontiguousarray(bits(seed, (count + 7) // 8).view(np.uint8)[:count]).reshape(shape)


def codes(seed: int, low: int, high: int, *shape: int) -> NDArray[np.uint8]:
    """Integers from low to high, both included."""
    return (low + raw_bytes(seed, *shape).astype(np.uint16) % (high - low + 1)).astype(np.uint8)


def bell(seed: int, *shape: int) -> NDArray[np.float32]:
    """Bell-shaped around 0, variance 1: the sum of twelve 16-bit uniform numbers."""
    count = int(np.prod(shape))
    words = bits(seed, 3 * count).view(np.uint16).reshape(count, 12)
    values: NDArray[np.float32] = ((words.astype(np.int64).sum(1) - 12 * 32767.5) / 65536.0).astype(np.float32)
    return values.reshape(shape)


def bf16_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 -> bf16 bits, ties to even."""
    b = x.view(np.uint32).astype(np.uint64)
    return ((b + 0x7FFF + (b >> 16 & 1)) >> 16).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Weights:
    """A layer's raw checkpoint weights, all experts: w13 [E, 2I, H/2], its scales [E, 2I, H/32], w2 [E, H, I/2], [E,
    H, I/32]."""

    w13: NDArray[np.uint8]
    w13_scale: NDArray[np.uint8]
    w2: NDArray[np.uint8]
    w2_scale: NDArray[np.uint8]


def weights(seed: int, experts: int, hidden: int, inter: int, scale_codes: tuple[int, int] = (118, 122)) -> Weights:
    """All fp4 codes, e8m0 scales between the given codes (the default keeps the layer's numbers around 1)."""
    low, high = scale_codes
    return Weights(
        raw_bytes(seed + 1, experts, 2 * inter, hidden // 2),
        codes(seed + 2, low, high, experts, 2 * inter, hidden // 32),
        raw_bytes(seed + 3, experts, hidden, inter // 2),
        codes(seed + 4, low, high, experts, hidden, inter // 32),
    )


ACTIVATIONS = ("bell", "zero", "huge", "tiny", "mixed")
ROUTINGS = ("spread", "one_rank", "one_expert", "empty_ranks")


def activations(kind: str, seed: int, tokens: int, hidden: int) -> NDArray[np.uint16]:
    """bf16 bits [tokens, hidden]. huge: around 1e14, outputs up to 1e31; mixed: groups of 32 scaled by 2^-30 ..
    2^30, every third token zero."""
    x = bell(seed, tokens, hidden)
    if kind == "zero":
        x = np.zeros_like(x)
    elif kind == "huge":
        # The largest whose sums stay finite: beyond, float32 sums of a tile overflow and come back as NaN, not as
        # numbers.
        x = x * np.float32(1e14)
    elif kind == "tiny":
        x = x * np.float32(2.0**-120)
    elif kind == "mixed":
        power = (raw_bytes(seed + 7, tokens, hidden // 32).astype(np.int32) % 61) - 30
        x = np.ldexp(x, np.repeat(power, 32, axis=1)).astype(np.float32)
        x[::3] = 0
    return bf16_bits(x)


def routing(
    kind: str, seed: int, tokens: int, experts: int, topk: int, ranks: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Distinct expert ids [tokens, topk] and positive weights that sum to 1.

    spread: any experts; one_rank: only those of the last rank; one_expert: expert 0 always first, the others any;
    empty_ranks: only those of the first half of the ranks.
    """
    per = experts // ranks
    low, high = {"spread": (0, experts), "one_rank": ((ranks - 1) * per, experts), "one_expert": (0, experts),
                 "empty_ranks": (0, max(1, ranks // 2) * per)}[kind]  # fmt: skip
    key = bits(seed, tokens * (high - low)).reshape(tokens, high - low).copy()
    if kind == "one_expert":
        key[:, 0] = 0
    ids = (low + np.argsort(key, axis=1, kind="stable")[:, :topk]).astype(np.int32)
    raw = 1.0 + (bits(seed + 1, tokens * topk) % np.uint64(1000)).astype(np.float64).reshape(tokens, topk) / 250.0
    return ids, (raw / raw.sum(1, keepdims=True)).astype(np.float32)
