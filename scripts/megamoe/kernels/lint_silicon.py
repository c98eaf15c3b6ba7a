"""What gfx950's silicon asks of machine code beyond the meaning of each instruction.

Two things that executing one instruction after the other cannot show. Between certain instructions that depend on each
other the hardware has no interlock: so many wait states must lie between them (every instruction is one, `s_nop N` is
N + 1). And one encoding of packed float32 arithmetic is computed wrongly while matrix work is under way.

Sources: LLVM's GCNHazardRecognizer for gfx950 (its numbers were raised twice in 2025, so an older compiler emits too
few); llvm/llvm-project#197267 (2026-05) for buffer stores whose offset is a register, which LLVM 22 leaves out;
ROCm/rocMLIR#2459 (2026-08) for packed float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kernel_lane.decode import AGPR, EXEC, M0, VGPR, Instruction, operands
from kernel_lane.text import text

from megamoe.kernels.lint_flow import Flow

_VECTOR = ("VOP1", "VOP2", "VOPC", "VOP3", "VOP3P")
_TRANSCENDENTAL = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")
_PACKED_FLOAT = ("v_pk_add_f32", "v_pk_mul_f32", "v_pk_fma_f32")
_ONE_LANE = ("v_readlane_b32", "v_writelane_b32", "v_readfirstlane_b32")
_FP4 = 4  # cbsz, blgp
_FP4_PASSES, _FP8_PASSES = 4, 8


def _bits(code: int, words: int) -> int:
    return ((1 << words) - 1) << code


_SCALAR = _bits(0, 128) & ~_bits(EXEC, 2)
_LANES = _bits(VGPR, 2 * (AGPR - VGPR))


@dataclass(frozen=True, slots=True)
class Use:
    """One instruction's registers as bits by operand code, and its class.

    matrix: passes of a matrix product, 0 for everything else. sum: the registers from which a matrix product starts.
    wide, late: the data of a store of more than 64 bits, and how long it is still being read; partial: writes only part
    of its register.
    chosen: the scalar register that says which lane is read or written.
    """

    reads: int
    writes: int
    vector: bool
    memory: bool
    lds: bool
    matrix: int
    sum: int
    wide: int
    late: int
    transcendental: bool
    partial: bool
    dpp: bool
    swap: bool
    lane: str
    chosen: int
    lds_dma: bool
    scalar: bool
    states: int


def use_of(i: Instruction) -> Use:
    reads = writes = 0
    for code, words, written in operands(i):
        if written:
            writes |= _bits(code, words)
        elif code < 128 or code >= VGPR:
            reads |= _bits(code, words)
    op = i.opcode
    swap = "_swap_" in op.name
    if swap:
        reads = writes = reads | writes
    elif op.name.startswith("v_fmac"):
        reads |= writes
    matrix = 0
    if op.name.startswith("v_mfma"):
        matrix = _FP4_PASSES if i.formats == (_FP4, _FP4) else _FP8_PASSES
    store = op.memory is not None and op.memory[0] == "store" and op.memory[1] > 8
    return Use(
        reads=reads,
        writes=writes,
        vector=op.encoding in _VECTOR,
        memory=op.encoding in ("MUBUF", "FLAT"),
        lds=op.encoding == "DS",
        matrix=matrix,
        sum=_bits(i.src[2], 4) if matrix and i.src[2] >= VGPR else 0,
        wide=_bits(i.src[1], op.memory[1] // 4) if store and op.memory else 0,
        late=1 if store and op.encoding == "MUBUF" and i.src[3] < 128 else 2,
        transcendental=op.name.startswith(_TRANSCENDENTAL),
        partial=(i.sdwa is not None and i.sdwa.dst != 6) or bool(op.encoding == "VOP3" and i.opsel & 12),
        dpp=i.dpp is not None,
        swap=swap,
        lane=op.name if op.name in _ONE_LANE else "",
        chosen=_bits(i.src[1], 1) if op.name in _ONE_LANE[:2] and i.src[1] < 128 else 0,
        lds_dma="lds" in i.flags,
        scalar=op.encoding.startswith("SOP"),
        states=i.imm + 1 if op.name == "s_nop" else 1,
    )


@dataclass(frozen=True, slots=True)
class Need:
    """Wait states between an instruction and a later one that meets it in a register.

    meet: the registers in which they meet so, as bits; 0 when they do not. states: how many, given the first one.
    """

    words: str
    states: Callable[[Use], int]
    meet: Callable[[Use, Use], int]


def _constant(n: int) -> Callable[[Use], int]:
    return lambda _first: n


def _matrix_to_sum(a: Use, b: Use) -> int:
    """The same four registers go straight on; others that overlap do not."""
    return a.writes & b.sum if a.writes != b.sum else 0


NEEDS: tuple[Need, ...] = (
    Need("a matrix product's result, read by a matrix product as a factor or scale", lambda a: a.matrix + 4,
         lambda a, b: a.writes & b.reads & ~b.sum if a.matrix and b.matrix else 0),
    Need("a matrix product's result, read by a matrix product as part of another sum", lambda a: a.matrix + 2,
         lambda a, b: _matrix_to_sum(a, b) if a.matrix and b.matrix else 0),
    Need("a matrix product's result, read", lambda a: a.matrix + 4,
         lambda a, b: a.writes & b.reads if a.matrix and not b.matrix and (b.vector or b.memory or b.lds) else 0),
    Need("a matrix product's result, overwritten", lambda a: a.matrix + 4,
         lambda a, b: a.writes & b.writes if a.matrix and not b.matrix and (b.vector or b.memory or b.lds) else 0),
    Need("what a matrix product starts from, overwritten", lambda a: a.matrix - 1,
         lambda a, b: a.sum & b.writes if not b.matrix and (b.vector or b.memory or b.lds) else 0),
    Need("a vector instruction's result, read by a matrix product", _constant(2),
         lambda a, b: a.writes & b.reads & _LANES if a.vector and not a.matrix and b.matrix else 0),
    Need("the mask of lanes, written by a vector instruction, before a matrix product", _constant(4),
         lambda a, b: a.writes & _bits(EXEC, 2) if a.vector and not a.matrix and b.matrix else 0),
    Need("a scalar register written by a vector instruction, read by a memory instruction", _constant(5),
         lambda a, b: a.writes & b.reads & _SCALAR if a.vector and b.memory else 0),
    Need("a scalar register written by a vector instruction, which chooses a lane", _constant(4),
         lambda a, b: a.writes & b.chosen if a.vector else 0),
    Need("a scalar register written by a vector instruction, read by another", _constant(2),
         lambda a, b: a.writes & b.reads & _SCALAR if a.vector and b.vector else 0),
    Need("the mask of lanes, written by a vector instruction, before lanes are moved", _constant(5),
         lambda a, b: a.writes & _bits(EXEC, 2) if a.vector and b.dpp else 0),
    Need("the mask of lanes, written by a vector instruction, before a lane is read, written or swapped", _constant(4),
         lambda a, b: a.writes & _bits(EXEC, 2) if a.vector and (b.lane or b.swap) else 0),
    Need("a vector instruction's result, whose lanes are moved", _constant(2),
         lambda a, b: a.writes & b.reads & _LANES if a.vector and (b.dpp or b.swap) else 0),
    Need("a vector instruction's result, of which a lane is read", _constant(1),
         lambda a, b: a.writes & b.reads & _LANES if a.vector and b.lane.startswith("v_read") else 0),
    Need("a transcendental instruction's result", _constant(1),
         lambda a, b: a.writes & b.reads & _LANES if a.transcendental and b.vector and not b.transcendental else 0),
    Need("a register of which only a part was written", _constant(1),
         lambda a, b: a.writes & b.reads & _LANES if a.partial and b.vector else 0),
    Need("the data of a store of more than 64 bits, overwritten", lambda a: a.late,
         lambda a, b: a.wide & b.writes if b.vector else 0),
    Need("M0, written by a scalar instruction, before a copy to LDS", _constant(1),
         lambda a, b: a.writes & _bits(M0, 1) if a.scalar and b.lds_dma else 0),
)  # fmt: skip
REACH = _FP8_PASSES + 4
"""The longest of them: nothing further away matters."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Two instructions too close: `have` wait states between them where `want` are asked for."""

    first: Instruction
    second: Instruction
    have: int
    want: int
    words: str


def gaps(instructions: Sequence[Instruction], flow: Flow) -> Iterator[Gap]:
    """Pairs of instructions that lie too close, on any path: one of each kind per second instruction."""
    uses = [use_of(i) for i in instructions]
    before: list[list[int]] = [[] for _ in instructions]
    for n in range(len(instructions)):
        for m in flow.next(n):
            before[m].append(n)
    for n, second in enumerate(uses):
        if not (second.vector or second.memory or second.lds):
            continue
        told: set[str] = set()
        # Position, wait states between, and the registers that a matrix product between has written anew: those come
        # out in order.
        work = [(p, 0, 0) for p in before[n]]
        while work:
            p, between, anew = work.pop()
            first = uses[p]
            for need in NEEDS:
                if need.words not in told and need.meet(first, second) & ~(anew if first.matrix else 0):
                    want = need.states(first)
                    if between < want:
                        told.add(need.words)
                        yield Gap(instructions[p], instructions[n], between, want, need.words)
            if between + first.states < REACH:
                anew |= first.writes if first.matrix else 0
                work += [(q, between + first.states, anew) for q in before[p]]


def packed_float_faults(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Packed float32 operations whose low half takes the first source's low and the second's high register."""
    return [i for i in instructions if i.opcode.name in _PACKED_FLOAT and i.opsel & 3 == 2]


def gap_in_words(gap: Gap) -> str:
    return (
        f"{text(gap.second)} at {gap.second.pc:#x} comes {gap.have} wait states after {text(gap.first)} at "
        f"{gap.first.pc:#x}, {gap.want} are needed ({gap.words})"
    )
