"""A kernel's decoded machine code as the steps that the rules look at."""

from __future__ import annotations

from typing import Literal

from kernel_lane.decode import EXEC, Instruction
from kernel_lane.text import text

from megamoe.kernels.lint_flow import Kind, Step

_NO_WAIT = 63


def _kind(i: Instruction) -> Kind:
    name = i.opcode.name
    if i.opcode.memory is not None:
        action = i.opcode.memory[0]
        if i.opcode.encoding in ("DS", "SMEM"):
            return "other"
        if action == "cache":
            return "release" if name == "buffer_wbl2" else "other"
        if action == "load":
            return "lds_dma" if "lds" in i.flags else "load"
        return "store" if action == "store" else "atomic"
    named: dict[str, Kind] = {
        "s_waitcnt": "wait",
        "s_barrier": "barrier",
        "s_endpgm": "end",
        "s_branch": "jump",
    }
    return named.get(name, "branch" if name.startswith("s_cbranch") else "other")


def _mask(i: Instruction) -> Literal["", "split", "flip", "join"]:
    name = i.opcode.name
    if name in ("s_andn2_saveexec_b64", "s_or_saveexec_b64"):
        return "flip"
    if name == "s_xor_b64" and i.dst != EXEC and i.src[0] == EXEC:
        return "split"
    if name == "s_or_b64" and i.dst == EXEC and i.src[0] == EXEC:
        return "join"
    return ""


def step_of(i: Instruction) -> Step:
    kind = _kind(i)
    vmcnt = i.wait[0] if kind == "wait" and i.wait[0] != _NO_WAIT else None
    return Step(i.pc, kind, text(i), vmcnt, i.target if i.target >= 0 else None, _mask(i))


def waits_for_others(instructions: list[Instruction]) -> bool:
    """Whether a loop only reads one word past the caches (sc0 sc1): it spins until another wave writes it."""
    position = {i.pc: n for n, i in enumerate(instructions)}
    for n, i in enumerate(instructions):
        if 0 <= i.target <= i.pc:
            memory = [b for b in instructions[position[i.target] : n] if b.opcode.memory is not None]
            if len(memory) == 1 and memory[0].opcode.memory is not None and memory[0].opcode.memory[0] == "load":
                flags = memory[0].flags
                if {"sc0", "sc1"} <= flags and memory[0].opcode.encoding == "FLAT":
                    return True
    return False
