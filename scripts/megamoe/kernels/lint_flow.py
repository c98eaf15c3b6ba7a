"""What may still be under way at each point of a kernel: memory operations that no wait has covered, on any path.

The hardware counts a wave's vector memory operations in one queue, in order of issue; `s_waitcnt vmcnt(N)` returns when
at most the N youngest are outstanding. Here the queue before every instruction is computed over the control flow graph,
joined where paths meet: an entry that is an LDS-DMA on one path counts as one. So a kernel that passes has no path on
which a barrier is crossed too early, if operations complete in order. Timing and caches are not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["other", "load", "lds_dma", "store", "atomic", "release", "wait", "barrier", "branch", "jump", "end"]
QUEUE = 63
"""Entries that vmcnt can count; a wave that would have more under way stalls until one has completed."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction, as far as waits and order are concerned.

    pc: address in the code object. text: mnemonic and operands. vmcnt: of a wait; None when it does not wait for vector
    memory. target: of a branch or jump. mask: how it moves the mask of active lanes ("" not, "split" into two arms,
    "flip" to the other arm, "join").
    """

    pc: int
    kind: Kind
    text: str
    vmcnt: int | None = None
    target: int | None = None
    mask: Literal["", "split", "flip", "join"] = ""


@dataclass(frozen=True, slots=True)
class Queue:
    """Operations that may be outstanding, youngest in bit 0: which may be LDS-DMA, which may be stores or atomics."""

    length: int = 0
    lds_dma: int = 0
    stores: int = 0

    def push(self, kind: Kind) -> Queue:
        keep = (1 << QUEUE) - 1
        return Queue(
            min(self.length + 1, QUEUE),
            (self.lds_dma << 1 | (kind == "lds_dma")) & keep,
            (self.stores << 1 | (kind in ("store", "atomic"))) & keep,
        )

    def wait(self, count: int) -> Queue:
        keep = (1 << count) - 1
        return Queue(min(self.length, count), self.lds_dma & keep, self.stores & keep)

    def join(self, other: Queue) -> Queue:
        return Queue(max(self.length, other.length), self.lds_dma | other.lds_dma, self.stores | other.stores)


@dataclass(frozen=True, slots=True)
class Barrier:
    """What may be outstanding in a wave that enters a barrier, and the wait right before it, if there is one."""

    pc: int
    lds_dma: int
    stores: int
    wait_pc: int | None
    vmcnt: int | None


@dataclass(slots=True)
class Flow:
    steps: Sequence[Step]
    index: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = {s.pc: n for n, s in enumerate(self.steps)}

    def next(self, n: int) -> list[int]:
        """Positions that may follow position n. A target outside the kernel is an error of the caller's decoding."""
        step = self.steps[n]
        follow = [] if step.kind in ("jump", "end") or n + 1 == len(self.steps) else [n + 1]
        if step.target is not None:
            follow.append(self.index[step.target])
        return follow

    def queues(self) -> list[Queue | None]:
        """The queue before each step, None where no path leads."""
        before: list[Queue | None] = [None] * len(self.steps)
        if not self.steps:
            return before
        before[0] = Queue()
        work = [0]
        while work:
            n = work.pop()
            queue = before[n]
            assert queue is not None
            after = _after(queue, self.steps[n])
            for m in self.next(n):
                old = before[m]
                new = after if old is None else old.join(after)
                if new != old:
                    before[m] = new
                    work.append(m)
        return before

    def barriers(self) -> list[Barrier]:
        found = []
        for n, (step, queue) in enumerate(zip(self.steps, self.queues(), strict=True)):
            if step.kind == "barrier" and queue is not None:
                wait = self.steps[n - 1] if n and self.steps[n - 1].kind == "wait" else None
                found.append(
                    Barrier(
                        step.pc,
                        queue.lds_dma.bit_count(),
                        queue.stores.bit_count(),
                        wait.pc if wait is not None and wait.vmcnt is not None else None,
                        wait.vmcnt if wait is not None else None,
                    )
                )
        return found


def _after(queue: Queue, step: Step) -> Queue:
    if step.kind in ("load", "lds_dma", "store", "atomic", "release"):
        return queue.push(step.kind)
    if step.kind == "wait" and step.vmcnt is not None:
        return queue.wait(step.vmcnt)
    return queue
