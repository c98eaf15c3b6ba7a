"""One instruction on one wave, and small programs: the tests' way into the machine below the level of bundles."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from assemble import MODE
from kernel_lane import elf, machine
from kernel_lane.decode import Instruction
from kernel_lane.isa import BY_NAME
from kernel_lane.machine.layout import MachineRecord, Wave
from kernel_lane.machine.lower import lower
from numpy.typing import NDArray

V, A, VCC, EXEC, SCC = 256, 512, 106, 126, 253


def instruction(name: str, **fields: object) -> Instruction:
    """An instruction as the decoder would give it (address 0)."""
    return Instruction(0, 4, BY_NAME[name], str(fields.pop("form", "e64")), **fields)  # type: ignore[arg-type]


class Bench:
    """A wave whose registers can be set and read; `library` may be a mutated core."""

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        self.library = library or machine.library()
        self.wave = Wave()
        self.machine = MachineRecord()
        self.v: NDArray[np.uint32] = np.ctypeslib.as_array(self.wave.v)
        self.s: NDArray[np.uint32] = np.ctypeslib.as_array(self.wave.s)
        self.exec = (1 << 64) - 1

    def set_s64(self, at: int, value: int) -> None:
        self.s[at], self.s[at + 1] = value & 0xFFFFFFFF, value >> 32

    def get_s64(self, at: int) -> int:
        return int(self.s[at]) | int(self.s[at + 1]) << 32

    @property
    def exec(self) -> int:
        return self.get_s64(EXEC)

    @exec.setter
    def exec(self, value: int) -> None:
        self.set_s64(EXEC, value)

    def set_row(self, code: int, values: NDArray[np.uint64] | Sequence[int], words: int = 1) -> None:
        a = np.asarray(values, dtype=np.uint64)
        self.v[code - V] = (a & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        if words == 2:
            self.v[code - V + 1] = (a >> np.uint64(32)).astype(np.uint32)

    def get_row(self, code: int, words: int = 1) -> list[int]:
        low = self.v[code - V].astype(np.uint64)
        if words == 2:
            low = low | self.v[code - V + 1].astype(np.uint64) << np.uint64(32)
        return [int(x) for x in low]

    def step(self, i: Instruction) -> None:
        record = lower([i])
        self.library.machine_step(ctypes.byref(self.machine), ctypes.byref(self.wave), ctypes.byref(record[0]))


def kernel(*, lds: int = 0, kernarg: int = 64, threads: int = 1024) -> elf.Kernel:
    """What metadata and descriptor would say of a hand-made program."""
    arguments = tuple(elf.Argument(f"a{n}", n, 8, "global_buffer") for n in range(0, kernarg, 8))
    start = elf.Descriptor(MODE | 13 << 6 | 63, 2 << 1 | 1 << 7, 63, 8, 0)
    return elf.Kernel(
        "program", 0, 0, kernarg, lds, 0, 512, 256, 102, 0, 0, threads, arguments, 64, 2, (True, False, False), start
    )


def program(instructions: Sequence[Instruction], **facts: int) -> machine.Code:
    """A list of instructions as runnable code; addresses are 4 bytes apart."""
    import dataclasses

    placed = [
        dataclasses.replace(i, pc=4 * n, target=4 * i.target if i.target >= 0 else -1)
        for n, i in enumerate(instructions)
    ]
    return machine.Code(kernel(**facts), tuple(placed), lower(placed))
