"""From logits to the next token: greedy, or sampled with temperature, top-k, top-p and a seed of the request's own."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request wants its tokens chosen and when to stop.

    temperature 0 is greedy; top_k 0 and top_p 1.0 keep everything; seed None draws a fresh one.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class Sampler:
    """Draws tokens for one sequence; its random numbers depend on the seed alone, not on who else is being served."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        # torch takes 64-bit seeds, the API any integer.
        self._generator = torch.Generator().manual_seed(seed % (1 << 63))

    def pick(self, logits: torch.Tensor) -> int:
        """logits: float32 [vocab]."""
        s = self._sampling
        if s.temperature == 0:
            return int(logits.argmax())
        # Stable, so that equal logits keep the order of their ids on every machine.
        values, ids = logits.double().sort(descending=True, stable=True)
        if s.top_k:
            values, ids = values[: s.top_k], ids[: s.top_k]
        probabilities = torch.softmax(values / s.temperature, dim=0)
        if s.top_p < 1:
            # A token stays while those before it do not yet reach top_p: the first always stays.
            kept = int((probabilities.cumsum(0) - probabilities < s.top_p).sum())
            probabilities, ids = probabilities[:kept], ids[:kept]
        cumulative = probabilities.cumsum(0)
        draw = torch.rand((), generator=self._generator, dtype=torch.float64) * cumulative[-1]
        index = min(int(torch.searchsorted(cumulative, draw, right=True)), len(ids) - 1)
        return int(ids[index])
