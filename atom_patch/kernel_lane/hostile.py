"""A bundle under many schedules, with the machine's checks on: what depends on luck, and which accesses are to
blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernel_lane.execute import Executor
from kernel_lane.judge import FAULTS, MEANINGS, compare, place
from kernel_lane.machine import Finding
from kernel_lane.machine.schedule import Schedule

_SEEDED = ("random", "late", "scatter", "flag", "stall", "slow")
_POISONS = (0xA5, 0xFF, 0x00)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One fault or note, told once, with the schedules under which it showed."""

    code: str
    fault: bool
    what: str
    why: str
    fix: str


@dataclass(slots=True)
class Report:
    verdicts: list[Verdict] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    instructions: int = 0
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        return all(r["exact"] for r in self.runs)


def examine(executor: Executor, plan: Sequence[Schedule], seeds: int) -> Report:
    """Runs the plan. Each seed also takes another poison for registers, LDS and undefined memory: an output that
    depends
    on a value nobody wrote differs from the expectation under one of them.

    A run whose output is wrong, or that stops, is a fault; so is a finding of kind judge.FAULTS. Unordered reads and
    early LDS reads in a run whose output is right are notes: the value read may not matter (padding rows).
    """
    report = Report()
    seen: dict[tuple[Any, ...], list[Any]] = {}
    for schedule in plan:
        for seed in range(seeds if schedule.name in _SEEDED else 1):
            checked = replace(
                schedule, seed=schedule.seed + seed, poison=_POISONS[seed % 3],
                check_races=not schedule.late, check_lds=not schedule.late, check_unwritten=schedule.name == "order",
            )  # fmt: skip
            run = executor.run(checked)
            wrong = compare(executor.bundle, run.results)
            exact = not run.stop and not wrong
            report.runs.append(
                {"schedule": str(checked), "exact": exact, "instructions": run.instructions, "stop": run.stop}
            )
            report.instructions += run.instructions
            report.seconds += run.seconds
            for f in run.findings:
                seen.setdefault(_key(f), [f, [], False])
                seen[_key(f)][1].append(str(checked))
                seen[_key(f)][2] |= not exact
            if run.stop:
                report.verdicts.append(Verdict(
                    "kernel_stopped", True, f"under {checked} the run stopped: {run.stop}",
                    "on a GPU this is a hang or an access violation", "find the pc in the disassembly"))  # fmt: skip
            for d in wrong if not run.stop else ():
                report.verdicts.append(Verdict(
                    "output_differs", True,
                    f"under {checked} {d.name} differs in {d.differing} of "
                        f"{d.total} values, relative L2 {d.relative:.3g}",
                    "the result depends on timing or on memory that nobody wrote: a race",
                    "the notes below name the accesses that were out of order"))  # fmt: skip
    for f, schedules, with_wrong_output in seen.values():
        fault = f.kind in FAULTS
        where = ", ".join(dict.fromkeys(schedules))
        blame = "; the output was wrong in such a run" if with_wrong_output else ""
        told = MEANINGS[f.kind]
        report.verdicts.append(Verdict(f.kind, fault, f"{place(f)} (under {where}{blame})", told.why, told.fix))
    return report


def _key(f: Finding) -> tuple[Any, ...]:
    return f.kind, f.kernel, f.pc, f.other_kernel, f.other_pc, f.buffer.split(".", 1)[-1], f.same_wave
