"""Who runs when, and when memory operations complete.

A schedule is written NAME[:MODEL][@SEED], as on the command line:

* `order`            waves in turn, 400 instructions each, every operation complete at once
* `random`           blocks in random order, random slices
* `frozen`           in turn, but a wave that has just stored to a synchronising word sleeps while the others run on;
                     right code tolerates that, code that publishes before it has written does not
* `late`             loads land only when a wait demands it, stores become visible very late
* `scatter`          everything lands at random moments
* `flag`             synchronising words at once, everything else late
* `stall`, `slow`    as flag; a wave whose own stores are on their way stalls at its wait and the others run on
                     (slow: one wave in five has slow stores, the others none)

MODEL for the late ones: `fifo` (vmcnt completes in order; the default), `fifo+` (a write-back that completes also
completes the earlier stores of its block, which share a cache), `any`, `dma-last`, `dma-first`, `dma-any` (LDS-DMA
completes out of order against other loads, or among itself).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from megamoe_atom.problem import Exit, Problem

from kernel_lane.machine.layout import Options

_MODELS = {"fifo": 0, "fifo+": 1, "any": 2, "dma-last": 3, "dma-first": 4, "dma-any": 5}
# name: (schedule, late, sample_early, visible_now, land_early, store_mean, flags_now, stall, slow)
_NAMES: dict[str, tuple[int, int, float, float, float, float, int, int, float]] = {
    "order": (0, 0, 1, 1, 1, 1, 0, 0, 0),
    "random": (1, 0, 1, 1, 1, 1, 0, 0, 0),
    "frozen": (2, 0, 1, 1, 1, 1, 0, 0, 0),
    "late": (1, 1, 0.5, 0.1, 0, 30, 0, 0, 0),
    "scatter": (1, 1, 0.4, 0, 0.3, 3, 0, 0, 0),
    "flag": (1, 1, 0.5, 0, 0, 60, 1, 0, 0),
    "stall": (1, 1, 0.5, 0, 0, 12, 1, 1, 0),
    "slow": (1, 1, 0.5, 0, 0, 150, 1, 1, 0.2),
}
_QUANTA = (20, 100, 400)


@dataclass(frozen=True, slots=True)
class Schedule:
    """See the module. `resident` bounds the work-groups of a launch that run at one time (0: all)."""

    name: str = "order"
    model: str = "fifo"
    seed: int = 0
    limit: int = 200_000_000
    resident: int = 0
    check_races: bool = False
    check_unwritten: bool = False
    check_lds: bool = False
    poison: int = 0xA5

    @property
    def late(self) -> bool:
        return bool(_NAMES[self.name][1])

    @property
    def needs_sync(self) -> bool:
        """Whether the synchronising words must be known beforehand."""
        return self.late or self.name == "frozen" or self.check_races

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """From NAME[:MODEL][@SEED].

        Raises:
            Problem: schedule (exit 2).
        """
        m = re.fullmatch(r"([a-z]+)(?::([a-z+-]+))?(?:@([0-9]{1,9}))?", text)
        if not m or m[1] not in _NAMES or (m[2] or "fifo") not in _MODELS or (m[2] and not _NAMES[m[1]][1]):
            raise Problem(
                "schedule",
                what=f"{text!r} is no schedule",
                why=f"NAME[:MODEL][@SEED] with NAME of {', '.join(_NAMES)}, "
                f"for the late ones MODEL of {', '.join(_MODELS)}, and SEED of at most nine digits",
                fix="for example order, random@7, frozen, late@3, slow:fifo+@1",
                exit_code=Exit.REFUSED,
            )
        return cls(m[1], m[2] or "fifo", int(m[3] or 0))

    def __str__(self) -> str:
        return (
            self.name
            + (f":{self.model}" if self.late and self.model != "fifo" else "")
            + (f"@{self.seed}" if self.seed else "")
        )

    def with_seed(self, seed: int) -> Schedule:
        return replace(self, seed=seed)

    def fill(self, o: Options, *, discover: bool) -> None:
        """Writes the core's options."""
        (
            o.schedule,
            o.late,
            o.sample_early,
            o.visible_now,
            o.land_early,
            o.store_mean,
            o.flags_now,
            o.stall,
            o.slow,
        ) = _NAMES[self.name]
        o.model = _MODELS[self.model]
        o.quantum = 400 if not o.schedule or o.schedule == 2 else _QUANTA[self.seed % 3]
        o.checks = 1 * self.check_unwritten | 2 * self.check_races | 4 * self.check_lds | 8 * discover
        o.resident, o.seed, o.limit, o.freeze = self.resident, self.seed, self.limit, 60_000
        o.lds_poison = self.poison
        o.register_poison = self.poison * 0x01010101
