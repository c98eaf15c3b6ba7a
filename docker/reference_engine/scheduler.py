"""Continuous batching: one thread owns the model; sequences join and leave between steps.

Every step takes one token of each sequence that decodes and fills what is left of the token budget with prompt
chunks, oldest first. A cancelled sequence leaves before the next step and its slot is free at once.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch

from reference_engine.metrics import Metrics
from reference_engine.model import Chunk, KvCache, Model
from reference_engine.sampling import Sampler, Sampling
from reference_engine.text import GrowingText, Text

FinishReason = Literal["stop", "length", "error"]
MIN_SHARED_PREFIX = 16  # tokens; below this, copying 2 * layers tensors costs more than reading the prompt again


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step gave a sequence: its new text (may be empty), tokens generated so far, and the end, if it ended."""

    text: str
    generated: int
    finish_reason: FinishReason | None = None
    cached: int = 0


@dataclass(eq=False, slots=True)
class Sequence:
    """One prompt being completed. `deliver` is called from the scheduler's thread and must not block."""

    prompt: list[int]
    sampling: Sampling
    deliver: Callable[[Piece], None]
    arrived: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    slot: int = -1
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    sampler: Sampler | None = None
    text: GrowingText | None = None

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.prompt)


class Overloaded(Exception):
    """The waiting line is full."""


class Stopped(Exception):
    """The scheduler has stopped or failed; nothing can be served."""


class Scheduler:
    """Runs sequences through the model.

    Args:
        budget: tokens per step at most (--max-num-batched-tokens).
        chunked: a prompt may be read over several steps.
        reuse_prefixes: a new prompt copies keys and values of the longest beginning it shares with any slot.
        on_failure: called once from the thread when a step raised; every sequence has had its "error" by then.
    """

    def __init__(
        self,
        model: Model,
        cache: KvCache,
        text: Text,
        metrics: Metrics,
        *,
        budget: int,
        chunked: bool,
        reuse_prefixes: bool,
        max_waiting: int,
        on_failure: Callable[[], None],
    ) -> None:
        self._model, self._cache, self._text, self._metrics = model, cache, text, metrics
        self._budget, self._chunked, self._reuse = budget, chunked, reuse_prefixes
        self._max_waiting, self._on_failure = max_waiting, on_failure
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._slot_tokens: list[list[int]] = [[] for _ in range(cache.slots)]  # what each slot's cache holds
        self._free = list(range(cache.slots))
        self._changed = threading.Condition()
        self._stopping = False
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    # ---- called from any thread ----

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._failed

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queues sequences, all or none.

        Raises:
            Overloaded: the line is full. Stopped: nothing will be served any more.
        """
        batch = list(sequences)
        with self._changed:
            if self._stopping or self._failed:
                raise Stopped
            if len(self._waiting) + len(batch) > self._max_waiting:
                raise Overloaded(f"{len(self._waiting)} sequences are waiting, the line holds {self._max_waiting}")
            self._waiting.extend(batch)
            self._changed.notify()

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """Nobody waits for these any more; finished ones are ignored."""
        with self._changed:
            for sequence in sequences:
                sequence.cancelled = True
            self._changed.notify()

    def stop(self, timeout_s: float) -> bool:
        """Lets the running sequences finish, then ends the thread; False when it did not end in time."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- the scheduler's own thread ----

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._drop_cancelled()
                    while not (self._waiting or self._running):
                        if self._stopping:
                            return
                        self._gauges()
                        self._changed.wait()
                        self._drop_cancelled()
                    self._admit()
                    self._gauges()
                self._step()
        except BaseException:
            traceback.print_exc()
            with self._changed:
                self._failed = True
                for sequence in (*self._running, *self._waiting):
                    sequence.deliver(Piece("", sequence.generated, "error"))
                self._running.clear()
                self._waiting.clear()
            self._on_failure()

    def _drop_cancelled(self) -> None:
        gone = [s for s in self._running if s.cancelled]
        for sequence in gone:
            self._release(sequence)
        waiting = [s for s in self._waiting if not s.cancelled]
        self._metrics.cancelled.inc(len(gone) + len(self._waiting) - len(waiting))
        self._waiting = deque(waiting)

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._slot_tokens[sequence.slot] = sequence.tokens[: sequence.computed]
        self._free.append(sequence.slot)
        self._free.sort()  # lowest first: keeps the decoding slots a leading run

    def _admit(self) -> None:
        while self._waiting and self._free:
            sequence = self._waiting.popleft()
            sequence.slot = self._free.pop(0)
            sequence.tokens = list(sequence.prompt)
            sequence.sampler = Sampler(sequence.sampling)
            sequence.text = GrowingText(self._text, sequence.sampling.stop)
            if self._reuse:
                self._copy_shared_prefix(sequence)
            self._slot_tokens[sequence.slot] = []
            self._running.append(sequence)
            self._metrics.queue_seconds.observe(time.monotonic() - sequence.arrived)

    def _copy_shared_prefix(self, sequence: Sequence) -> None:
        held = {slot: tokens for slot, tokens in enumerate(self._slot_tokens) if tokens}
        held |= {s.slot: s.tokens[: s.computed] for s in self._running}
        # The last prompt token is always run: its logits choose the first new one.
        limit = len(sequence.prompt) - 1
        lengths = {slot: _shared(tokens, sequence.prompt, limit) for slot, tokens in held.items()}
        source = max(lengths, key=lambda slot: (lengths[slot], slot == sequence.slot), default=-1)
        if source < 0 or lengths[source] < MIN_SHARED_PREFIX:
            return
        if source != sequence.slot:
            self._cache.copy_prefix(source, sequence.slot, lengths[source])
        sequence.computed = sequence.cached = lengths[source]
        self._metrics.prefix_tokens.inc(sequence.cached)

    def _chunks(self) -> list[tuple[Sequence, Chunk]]:
        """Decoding sequences first (they are waited for token by token), then prompts, within the budget."""
        left = self._budget
        planned = []
        for sequence in sorted(self._running, key=lambda s: len(s.tokens) - s.computed > 1):
            todo = len(sequence.tokens) - sequence.computed
            take = min(todo, left)
            if take < todo and (take == 0 or not self._chunked):
                continue
            planned.append(
                (
                    sequence,
                    Chunk(
                        sequence.slot, sequence.computed, sequence.tokens[sequence.computed : sequence.computed + take]
                    ),
                )
            )
            left -= take
        return planned

    def _step(self) -> None:
        planned = self._chunks()
        started = time.monotonic()
        logits = self._model.forward([chunk for _, chunk in planned], self._cache)
        self._metrics.step_seconds.observe(time.monotonic() - started)
        self._metrics.step_tokens.observe(sum(len(chunk.tokens) for _, chunk in planned))
        ended = []
        for row, (sequence, chunk) in enumerate(planned):
            sequence.computed = chunk.end
            if sequence.computed == len(sequence.tokens) and self._advance(sequence, logits[row]):
                ended.append(sequence)
        with self._changed:
            for sequence in ended:
                self._release(sequence)

    def _advance(self, sequence: Sequence, logits: torch.Tensor) -> bool:
        """Chooses the next token and delivers what it gives; True when the sequence is done."""
        assert sequence.sampler is not None and sequence.text is not None  # set by _admit
        if sequence.generated == 0:
            self._metrics.prompt_tokens.inc(len(sequence.prompt))
            self._metrics.first_token_seconds.observe(time.monotonic() - sequence.arrived)
        token = sequence.sampler.pick(logits)
        sequence.tokens.append(token)
        self._metrics.generated_tokens.inc()
        reason: FinishReason | None = None
        piece = ""
        if token == self._model.config.eos_token_id and not sequence.sampling.ignore_eos:
            reason = "stop"
        else:
            piece = sequence.text.push(token)
            if sequence.text.stopped:
                reason = "stop"
            elif sequence.generated >= sequence.sampling.max_tokens:
                reason = "length"
        if reason:
            piece += sequence.text.finish()
            if sequence.text.stopped:  # a stop string may end with the very last characters
                reason = "stop"
        sequence.deliver(Piece(piece, sequence.generated, reason, sequence.cached))
        return reason is not None

    def _gauges(self) -> None:
        self._metrics.running.set(len(self._running))
        self._metrics.waiting.set(len(self._waiting))


def _shared(a: list[int], b: list[int], limit: int) -> int:
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if index >= limit or left != right:
            return index
    return min(len(a), len(b), limit)
