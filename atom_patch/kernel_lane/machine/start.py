"""What a kernel descriptor asks of the hardware, against what the machine gives; anything else is refused.

Source: LLVM, "User Guide for AMDGPU Backend": kernel descriptor, compute_pgm_rsrc1 to 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megamoe_atom.problem import Exit, Problem

from kernel_lane.decode import AGPR, VGPR, Instruction, operands
from kernel_lane.elf import Kernel

# (word, lowest bit, bits, what it must be, what that means). DX10_CLAMP is left out: no float is ever clamped here.
_FIELDS = (
    ("rsrc1", 12, 4, 0, "floats round to nearest even"),
    ("rsrc1", 16, 4, 15, "denormals are kept"),
    ("rsrc1", 20, 1, 0, "no privileged mode"),
    ("rsrc1", 22, 1, 0, "no debug mode"),
    ("rsrc1", 23, 1, 1, "IEEE mode: a minimum or maximum quiets NaNs"),
    ("rsrc1", 24, 2, 0, "reserved"),
    ("rsrc1", 26, 1, 0, "no FP16_OVFL: a conversion to fp8 does not saturate"),
    ("rsrc1", 27, 5, 0, "reserved"),
    ("rsrc2", 0, 1, 0, "no private segment"),
    ("rsrc2", 1, 5, 2, "two user SGPRs"),
    ("rsrc2", 6, 1, 0, "no trap handler"),
    ("rsrc2", 10, 1, 0, "no work-group info"),
    ("rsrc2", 13, 2, 0, "no exceptions"),
    ("rsrc2", 24, 7, 0, "no exceptions"),
    ("rsrc3", 16, 1, 0, "all waves of a work-group on one compute unit"),
    ("properties", 0, 16, 8, "the kernel argument pointer in s[0:1] and nothing else, waves of 64, no dynamic stack"),
    ("preload", 0, 16, 0, "no kernel arguments preloaded"),
)


def refusals(kernel: Kernel, instructions: Sequence[Instruction]) -> Iterator[Problem]:
    """Why the machine would not start this kernel, if it would not: start_state, registers (exit 2)."""
    yield from _descriptor(kernel)
    yield from _registers(kernel, instructions)


def _descriptor(kernel: Kernel) -> Iterator[Problem]:
    """A start state or a float mode other than the machine's."""
    for word, low, bits, want, meaning in _FIELDS:
        have = getattr(kernel.descriptor, word) >> low & (1 << bits) - 1
        if have != want:
            yield Problem(
                "start_state",
                what=f"{kernel.name}: bits {low} to {low + bits - 1} of the descriptor's {word} are {have}, not {want} "
                f"({meaning})",
                why="the lane knows one start state and one float mode; another gives other results",
                fix="compile as FlyDSL 0.2.4 does",
                exit_code=Exit.REFUSED,
            )


def _registers(kernel: Kernel, instructions: Sequence[Instruction]) -> Iterator[Problem]:
    """The first instruction that names a register beyond those that the descriptor allocates."""
    given = kernel.descriptor
    vgprs = min(256, given.first_agpr, given.vector_registers)
    limits = {"s": given.scalar_registers, "v": vgprs, "a": max(0, given.vector_registers - given.first_agpr)}
    for i in instructions:
        for code, words, _ in operands(i):
            if 102 <= code < VGPR:
                continue
            kind, number = ("a", code - AGPR) if code >= AGPR else ("v", code - VGPR) if code >= VGPR else ("s", code)
            if number + words > limits[kind]:
                yield Problem(
                    "registers",
                    what=f"{kernel.name}: {i.name} at {i.pc:#x} uses {kind}{number + words - 1}, "
                    f"the descriptor allocates {limits[kind]} of {kind}",
                    why="what lies beyond belongs to another wave: a GPU would read and change that wave's registers",
                    fix="build the code object again; descriptor and code are not of one compilation",
                    exit_code=Exit.REFUSED,
                )
                return
