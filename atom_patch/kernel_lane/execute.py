"""Runs a bundle on the machine, step by step, and keeps what each expect entry finds in memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from megamoe_atom.problem import Exit, Problem
from numpy.typing import NDArray

from kernel_lane import machine
from kernel_lane.bundle import Bundle, patch
from kernel_lane.machine import Buffer, Code, Finding, Outcome, Start, Sync
from kernel_lane.machine.schedule import Schedule


@dataclass(slots=True)
class StepRun:
    """One step's launches as they ran; `names` are the kernels' short names."""

    index: int
    names: list[str]
    outcome: Outcome
    seconds: float
    cpu_seconds: float


@dataclass(slots=True)
class Run:
    """`results` holds the bytes at each expect entry; `stop` tells why a run did not end ("" when it did)."""

    schedule: Schedule
    steps: list[StepRun] = field(default_factory=list)
    results: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    stop: str = ""
    memory: dict[str, NDArray[np.uint8]] = field(default_factory=dict)

    @property
    def instructions(self) -> int:
        return sum(s.outcome.steps for s in self.steps)

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.steps)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the machine alone: what a shared host does not distort."""
        return sum(s.cpu_seconds for s in self.steps)

    @property
    def findings(self) -> list[Finding]:
        return [f for s in self.steps for f in s.outcome.findings]


class Executor:
    """Holds a bundle's memory and runs it; several runs of one bundle share the decoded code and the sync words."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._codes: dict[tuple[str, str], Code] = {}
        self._sync: Sync | None = None

    def code(self, launch: dict[str, Any]) -> Code:
        key = (launch["code"], launch["kernel"])
        if key not in self._codes:
            self._codes[key] = machine.prepare(self.bundle.bytes_of(launch["code"]), launch["kernel"])
        return self._codes[key]

    def sync(self) -> Sync:
        """The synchronising words: polled with system scope, or updated atomically, in a plain run."""
        if self._sync is None:
            words = Sync()
            self._run(Schedule(), words, discover=True)
            self._sync = words
        return self._sync

    def run(self, schedule: Schedule | None = None, *, overlap: bool = False) -> Run:
        """Runs all steps; see Schedule. With overlap, a rank starts its next launch without waiting for its peers'.

        A run that stops (deadlock, limit, fault) returns what it has, with `stop` set.
        """
        schedule = schedule or Schedule()
        return self._run(schedule, self.sync() if schedule.needs_sync else None, overlap=overlap)

    def _run(self, schedule: Schedule, sync: Sync | None, *, discover: bool = False, overlap: bool = False) -> Run:
        content, defined = self.bundle.place(poison=schedule.poison)
        buffers = {
            b["name"]: Buffer(
                b["name"],
                content[b["name"]],
                b["rank"],
                defined[b["name"]],
                readonly=bool(b.get("readonly")),
                read_past=b.get("read_past", 0),
            )
            for b in self.bundle.buffers
        }
        result = Run(schedule, memory=content)
        for index, group in enumerate(self._groups(overlap)):
            starts: list[Start] = []
            writes: list[machine.Write] = []
            freed_later: list[Buffer] = []
            for order, step in enumerate(group):
                for w in step.get("host", []):
                    writes.append(
                        machine.Write(buffers[w["buffer"]], int(w["offset"]), self.bundle.bytes_of(w["file"]), order)
                    )
                for c in step.get("copy", []):
                    source = content[c["from"]][c["at"] : c["at"] + c["bytes"]]
                    writes.append(machine.Write(buffers[c["buffer"]], int(c["offset"]), source, order))
                for f in step.get("free", []):
                    # Where launches overlap, a rank that lags may still use what its host gives back behind the first.
                    if starts:
                        freed_later.append(buffers[f["buffer"]])
                    else:
                        buffers[f["buffer"]].freed = True
                starts += [self._start(launch, content, order) for launch in step.get("launches", [])]
                for e in step.get("expect", []):
                    self._keep(result, e, content)
            if not starts:
                for w in writes:
                    w.buffer.data[w.offset : w.offset + len(w.content)] = np.frombuffer(w.content, np.uint8)
                continue
            began, cpu = time.perf_counter(), time.thread_time()
            outcome = machine.run(
                starts, list(buffers.values()), replace(schedule, seed=schedule.seed + 1000 * index),
                writes=writes, sync=sync, discover=discover,
            )  # fmt: skip
            for buffer in freed_later:
                buffer.freed = True
            result.steps.append(
                StepRun(index, [s.name for s in starts], outcome, time.perf_counter() - began, time.thread_time() - cpu)
            )
            if outcome.stop:
                result.stop = (
                    f"{outcome.stop} in {outcome.stop_kernel} (rank {outcome.stop_rank}, pc {outcome.stop_pc:#x})"
                )
                break
        return result

    def _groups(self, overlap: bool) -> list[list[dict[str, Any]]]:
        """Steps that run together: each launch step with the host writes before it, or all up to the next expect."""
        groups: list[list[dict[str, Any]]] = []
        current: list[dict[str, Any]] = []
        for step in self.bundle.steps:
            if "expect" in step:
                groups += [current] if current else []
                groups.append([step])
                current = []
            else:
                current.append(step)
                if "launches" in step and not overlap:
                    groups.append(current)
                    current = []
        return [*groups, current] if current else groups

    def _start(self, launch: dict[str, Any], content: dict[str, NDArray[np.uint8]], order: int) -> Start:
        kernarg = bytearray.fromhex(launch["kernarg"])
        patch(kernarg, launch["pointers"], content)
        return Start(
            self.code(launch), tuple(launch["grid"]), tuple(launch["block"]), bytes(kernarg), launch["rank"],
            launch["dynamic_lds"], launch["name"], order,
        )  # fmt: skip

    def _keep(self, result: Run, entry: dict[str, Any], content: dict[str, NDArray[np.uint8]]) -> None:
        size = (self.bundle.folder / entry["file"]).stat().st_size
        result.results[entry["name"]] = content[entry["buffer"]][entry["offset"] : entry["offset"] + size].copy()


def write_results(run: Run, folder: Path) -> None:
    """The executor's side of the runner contract: one file per expect entry."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in run.results.items():
        (folder / f"{name}.bin").write_bytes(data.tobytes())


def read_results(bundle: Bundle, folder: Path) -> dict[str, NDArray[np.uint8]]:
    """What a runner wrote.

    Raises:
        Problem: result_missing (exit 5): no evidence for an expect entry.
    """
    results = {}
    for entry in expectations(bundle):
        file = folder / f"{entry['name']}.bin"
        if not file.is_file():
            raise Problem(
                "result_missing",
                what=f"{file} is missing",
                why="the runner wrote no result for this expect entry, so nothing is known about it",
                fix="the runner must write OUT/NAME.bin at each expect entry, then exit 0",
                exit_code=Exit.NO_EVIDENCE,
            )
        results[entry["name"]] = np.frombuffer(file.read_bytes(), np.uint8)
    return results


def expectations(bundle: Bundle) -> Sequence[dict[str, Any]]:
    return [e for step in bundle.steps for e in step.get("expect", [])]
