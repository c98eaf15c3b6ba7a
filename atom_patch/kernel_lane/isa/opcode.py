"""The form in which every opcode is written down, once: number, operands, meaning.

A `meaning` is C, and it is what runs: machine/emit.py puts it into a loop over lanes or a scalar frame, nothing else
defines what an opcode does. Names in a meaning:

* `S0 S1 S2` sources and `D` the result, seen as `.u .i` 32-bit integers, `.f` float32, `.u16 .i16 .u8` the low bits,
  `.u64 .i64` a pair of registers. `D` is assigned once, as the last statement that computes; before it, `D.x` on the
  right is the old content of the destination.
* scalar instructions: `SCC` (0 or 1) may be read and set; `VCC`, `EXEC`, `M0` and `K` (the signed 16-bit immediate).
* lane instructions: `CIN` carry-in bit, `COUT` carry-out bit, `P` the comparison's result bit, `LANE` 0..63, `OPSEL`
bits.
* wave instructions (`kind="wave"`): the whole wave at once, in C with the helpers of machine/core.h.
Helpers (`fma32`, `max_f32`, `to_fp8`, ...) are defined in machine/arith.h; `SCALE(x)` is x, or stops the run where x is
no scale.

Integer arithmetic wraps; float32 arithmetic rounds to nearest even with denormals (the kernels' mode); inexact
transcendental opcodes (v_exp, v_rcp, ...) are computed in float64 and rounded once, where hardware may differ in the
last place.
Source: LLVM 22's AMDGPU tables for numbers, AMD "CDNA3 / CDNA4 ISA" for meanings; checked by execution (tests/lane).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Encoding = Literal[
    "SOP1", "SOP2", "SOPC", "SOPK", "SOPP", "SMEM", "VOP1", "VOP2", "VOPC", "VOP3", "VOP3P", "DS", "MUBUF", "FLAT"
]
Kind = Literal["scalar", "lane", "wave", "memory", "flow"]


@dataclass(frozen=True, slots=True)
class Opcode:
    """One instruction.

    Attributes:
        encoding, number: its native encoding; VOP1, VOP2 and VOPC opcodes also exist in VOP3 form (decode.py).
        kind: how it runs (see the module).
        reads, writes: registers of each source and of the destination in 32-bit words; 0 means "no such operand".
        carry: "in", "out", "both" or "": an extra lane mask operand (VCC, or an SGPR pair in the VOP3 form).
        float_in, float_out: sources may carry neg and abs.
        opsel: op_sel bits have a meaning here.
        literal: the second dword is an operand K (v_fmamk, v_fmaak).
        memory: for kind "memory", what is moved (memory.py).
    """

    name: str
    encoding: Encoding
    number: int
    kind: Kind
    meaning: str
    reads: tuple[int, ...] = ()
    writes: int = 0
    carry: str = ""
    float_in: bool = False
    opsel: bool = False
    literal: str = ""
    memory: tuple[str, int, int] | None = None


def widths(meaning: str) -> tuple[tuple[int, ...], int]:
    """Registers read and written, in words, from the names in a meaning."""
    reads = []
    for n in range(3):
        if f"S{n}" not in meaning:
            break
        reads.append(2 if f"S{n}.u64" in meaning or f"S{n}.i64" in meaning else 1)
    return tuple(reads), 2 if "D.u64" in meaning or "D.i64" in meaning else 1 if "D." in meaning else 0


def table(encoding: Encoding, kind: Kind, rows: str, **common: object) -> list[Opcode]:
    """Opcodes from lines `number name meaning`; words, widths and float sources follow from the meaning."""
    out = []
    for line in rows.strip().splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        number, name, meaning = line.split(None, 2)
        reads, writes = widths(meaning)
        options: dict[str, object] = {
            "reads": reads,
            "writes": writes,
            "float_in": "S0.f" in meaning,
            "opsel": "OPSEL" in meaning,
            "carry": ("in" if "CIN" in meaning else "") + ("out" if "COUT" in meaning else ""),
        } | common
        out.append(Opcode(name, encoding, int(number), kind, meaning, **options))  # type: ignore[arg-type]
    return out
