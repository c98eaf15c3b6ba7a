"""Two orders that a release does not repair: a flag that goes out early, and payload that nobody waited for.

Both come from kernels in which one wave speaks for many. LLVM writes a divergent branch as two arms over the mask of
active lanes (split, flip, join); the lanes of the first arm run ahead of those of the second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from megamoe.kernels.lint_flow import Flow, Step


@dataclass(frozen=True, slots=True)
class EarlyFlag:
    """`flag` is stored by the first arm's lanes; the other lanes store `data` only afterwards, and then `again`."""

    flag: int
    data: int
    again: int


@dataclass(frozen=True, slots=True)
class Unwaited:
    """Stores that may be outstanding in waves at a barrier after which one wave reports arrival (release, atomic)."""

    barrier: int
    release: int
    arrival: int
    stores: int


def _shape(step: Step) -> str:
    """A store without its register numbers: two copies of one store differ in those only."""
    return re.sub(r"\d+", "#", step.text)


def _arms(steps: list[Step]) -> list[tuple[int, int, int]]:
    """(split, flip, join) positions of each two-armed branch, found by the register that keeps the other arm's mask."""
    found = []
    for n, step in enumerate(steps):
        if step.mask != "flip":
            continue
        register = step.text.split()[1].rstrip(",")
        split = next((k for k in range(n - 1, -1, -1) if steps[k].mask == "split" and _names(steps[k], register)), None)
        join = next(
            (k for k in range(n + 1, len(steps)) if steps[k].mask == "join" and _names(steps[k], register)), None
        )
        if split is not None and join is not None:
            found.append((split, n, join))
    return found


def _names(step: Step, register: str) -> bool:
    return register in step.text.replace(",", " ").split()


def _publishes(arm: list[Step]) -> list[int]:
    """Positions in an arm of stores that follow a release and a full wait with no other store between."""
    found = []
    for n, step in enumerate(arm):
        if step.kind != "release":
            continue
        waited = False
        for k in range(n + 1, len(arm)):
            if arm[k].kind == "wait" and arm[k].vmcnt == 0:
                waited = True
            elif arm[k].kind in ("store", "atomic"):
                if waited:
                    found.append(k)
                break
            elif arm[k].kind in ("release", "barrier"):
                break
    return found


def early_flags(flow: Flow) -> list[EarlyFlag]:
    """A flag stored in both arms of a branch, whose second arm has data of its own to store before it."""
    steps = list(flow.steps)
    found = []
    for split, flip, join in _arms(steps):
        first, second = steps[split:flip], steps[flip:join]
        releases = [n for n, s in enumerate(second) if s.kind == "release"]
        data = next((s for s in second[: releases[0]] if s.kind == "store"), None) if releases else None
        if data is None:
            continue
        again = {_shape(second[n]): second[n] for n in _publishes(second)}
        for n in _publishes(first):
            if _shape(first[n]) in again:
                found.append(EarlyFlag(first[n].pc, data.pc, again[_shape(first[n])].pc))
    return found


def unwaited_stores(flow: Flow) -> list[Unwaited]:
    """Barriers that lead to an arrival while a wave's stores may be under way: a barrier is no wait for them."""
    steps = list(flow.steps)
    found = []
    for barrier in flow.barriers():
        if not barrier.stores:
            continue
        n = flow.index[barrier.pc] + 1
        release = None
        while n < len(steps) and steps[n].kind not in ("barrier", "end", "store"):
            if steps[n].kind == "release":
                release = steps[n].pc
            elif steps[n].kind == "atomic" and release is not None:
                found.append(Unwaited(barrier.pc, release, steps[n].pc, barrier.stores))
                break
            n += 1
    return found
