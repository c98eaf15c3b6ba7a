"""Every opcode of kernel_lane/isa against its second definition, in all lanes, on edges and on spread values."""

from __future__ import annotations

import inspect
import zlib

import definitions as d
import numpy as np
import pytest
from bench import SCC, VCC, A, Bench, V, instruction
from kernel_lane.isa import OPCODES
from kernel_lane.isa.opcode import Opcode
from numpy.typing import NDArray

EDGES32 = [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0xFFFFFF,
0x7FFFFFFF,
           0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x03020100, 0x0C0D0807]  # fmt: skip
EDGES_F = [0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x3F000000, 0x3FC00000,
0x40000000, 0x40200000,
           0x40A00000, 0x40C00000, 0x40BFFFFF, 0x43E00000, 0x43E80000, 0x43E7FFFF, 0x43F00000, 0x4B7FFFFF, 0x4F000000,
           0x4F800000,
           0xCF000000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3C800000, 0x3B000000, 0x3F7F8000,
           0x3F808000]  # fmt: skip
LANES = [o for o in OPCODES if o.kind == "lane"]
SCALARS = [o for o in OPCODES if o.kind == "scalar"]


def lane_definition(op: Opcode):  # type: ignore[no-untyped-def]
    return d.compare(op.name) if op.encoding == "VOPC" else d.LANE[op.name]


def values(rng: np.random.Generator, words: int, *, floats: bool) -> NDArray[np.uint64]:
    """64 operands: a third edges, the rest spread (floats: over all exponents, and around those that matter)."""
    raw = rng.integers(0, 1 << 64, 64, dtype=np.uint64) if words == 2 else rng.integers(0, 1 << 32, 64, dtype=np.uint64)
    if floats:
        near = rng.integers(0x38000000, 0x48000000, 64, dtype=np.uint64) | rng.integers(
            0, 2, 64, dtype=np.uint64
        ) << np.uint64(31)
        raw = np.where(rng.random(64) < 0.6, near, raw)
    edges = np.array(EDGES_F if floats else EDGES32, np.uint64)
    picked = rng.choice(edges, 64)
    if words == 2:
        picked = picked | rng.choice(edges, 64) << np.uint64(32)
    return np.where(rng.random(64) < 0.35, picked, raw)


def is_float(op: Opcode, n: int) -> bool:
    return f"S{n}.f" in op.meaning


def same(op: Opcode, have: int, want: int) -> bool:
    """Equal bits; a NaN's payload is not compared, as the ISA leaves it open for what these kernels use."""
    if have == want:
        return True
    if "D.f" in op.meaning:
        return d.is_nan(have) and d.is_nan(want)
    if op.name == "v_cvt_pk_bf16_f32":
        halves = [(have >> s & 0xFFFF, want >> s & 0xFFFF) for s in (0, 16)]
        return all(a == b or (a & 0x7FFF > 0x7F80 and b & 0x7FFF > 0x7F80) for a, b in halves)
    return False


def lane_case(bench: Bench, op: Opcode, rng: np.random.Generator) -> tuple[bool, str]:
    """One round of one opcode: all lanes, a random EXEC, a random form of its operands. -> (right, what differed)"""
    definition = lane_definition(op)
    wants = inspect.signature(definition).parameters
    operands = [values(rng, words, floats=is_float(op, n)) for n, words in enumerate(op.reads)]
    for n, operand in enumerate(operands):
        if f"SCALE(S{n}.u)" in op.meaning:  # exponent 255 stops the run (test_machine.py)
            infinite = operand >> np.uint64(23) & np.uint64(255) == 255
            operands[n] = np.where(infinite, operand ^ np.uint64(1 << 23), operand)
    literal = 0
    sources = []
    for n, words in enumerate(op.reads):
        if op.literal and n == 2:
            literal = int(operands[n][0])
            operands[n] = np.full(64, operands[n][0])
            sources.append(255)
        elif rng.random() < 0.2 and n == 0 and words == 1 and not op.literal:
            operands[n] = np.full(64, operands[n][0])
            bench.s[20] = int(operands[n][0])
            sources.append(20)
        else:
            bench.set_row(V + 10 + 4 * n, operands[n], words)
            sources.append(V + 10 + 4 * n)
    old, cin = values(rng, max(op.writes, 1), floats="fmac" in op.name), int(rng.integers(0, 1 << 64, dtype=np.uint64))
    bench.set_row(V + 40, old, max(op.writes, 1))
    bench.set_s64(30, cin)
    if "in" in op.carry:
        sources.append(30)
    execute = (1 << 64) - 1 if rng.random() < 0.3 else int(rng.integers(0, 1 << 64, dtype=np.uint64))
    bench.exec = execute
    opsel = (
        int(rng.choice([0, 4, 8, 12]))
        if op.name == "v_cvt_scalef32_pk_fp4_f32"
        else int(rng.choice([0, 8]))
        if op.opsel
        else 0
    )
    imm = int(rng.integers(0, 256)) if op.name == "v_bitop3_b32" else 0
    has_sdst = op.encoding == "VOPC" or "out" in op.carry
    bench.step(instruction(op.name, src=tuple(sources), dst=V + 40 if op.writes else -1, sdst=50 if has_sdst else -1,
                           literal=literal, opsel=opsel, imm=imm))  # fmt: skip
    have, mask = bench.get_row(V + 40, max(op.writes, 1)), bench.get_s64(50)
    for lane in range(64):
        extra = {"old": int(old[lane]), "cin": cin >> lane & 1, "lane": lane, "opsel": opsel, "imm": imm}
        result = definition(*[int(o[lane]) for o in operands], **{k: v for k, v in extra.items() if k in wants})
        active = execute >> lane & 1
        value, carry = result if isinstance(result, tuple) else (result, result)
        if has_sdst and mask >> lane & 1 != (carry if active else 0):
            return False, f"lane {lane}: mask bit {mask >> lane & 1}, inputs {[hex(int(o[lane])) for o in operands]}"
        if op.writes and not (same(op, have[lane], value) if active else have[lane] == int(old[lane])):
            inputs = [hex(int(o[lane])) for o in operands]
            return False, f"lane {lane}: {have[lane]:#x} for {value:#x}, inputs {inputs}, active {active}"
    return True, ""


def scalar_case(bench: Bench, op: Opcode, rng: np.random.Generator) -> tuple[bool, str]:
    definition = d.SCALAR.get(op.name) or d.scalar_compare(op.name)
    operands = [int(values(rng, words, floats=False)[0]) for words in op.reads]
    for n, (value, words) in enumerate(zip(operands, op.reads, strict=True)):
        bench.set_s64(10 + 4 * n, value) if words == 2 else bench.s.__setitem__(10 + 4 * n, value)
    scc, k = int(rng.integers(0, 2)), int(rng.integers(-32768, 32768))
    old, execute = int(values(rng, 1, floats=False)[0]), int(rng.integers(0, 1 << 64, dtype=np.uint64))
    bench.wave.scc, bench.exec = scc, execute
    bench.s[40] = old
    bench.step(instruction(op.name, form="", src=tuple(10 + 4 * n for n in range(len(op.reads))), dst=40, imm=k))
    a, b = [*operands, 0, 0][:2]
    value, want_scc, want_exec = definition(a, b, scc, k, old, execute)
    have = bench.get_s64(40) if op.writes == 2 else int(bench.s[40])
    expected = old if value is None else value
    right = have == expected and bench.wave.scc == want_scc and bench.exec == want_exec
    inputs = f"inputs {[hex(o) for o in operands]} k {k} scc {scc}"
    return right, f"{have:#x} scc {bench.wave.scc} for {expected:#x} scc {want_scc}, {inputs}"


def check(op: Opcode, bench: Bench, rounds: int = 6) -> str:
    """ "" when an opcode agrees with its second definition in all rounds, else the first difference."""
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))
    run = lane_case if op.kind == "lane" else scalar_case
    for _ in range(rounds if op.kind == "lane" else 40 * rounds):
        right, difference = run(bench, op, rng)
        if not right:
            return difference
    return ""


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def test_every_opcode_has_a_second_definition() -> None:
    lanes = {o.name for o in LANES if o.encoding != "VOPC"}
    assert lanes == set(d.LANE)
    scalars = {o.name for o in SCALARS if not o.name.startswith(("s_cmp_", "s_cmpk_"))}
    assert scalars == set(d.SCALAR)


@pytest.mark.parametrize("op", LANES, ids=lambda o: o.name)
def test_a_lane_opcode_does_what_its_second_definition_says(op: Opcode, bench: Bench) -> None:
    assert check(op, bench) == ""


@pytest.mark.parametrize("op", SCALARS, ids=lambda o: o.name)
def test_a_scalar_opcode_does_what_its_second_definition_says(op: Opcode, bench: Bench) -> None:
    assert check(op, bench) == ""


@pytest.mark.parametrize(("code", "value"), [(128, 0), (129, 1), (192, 64), (193, 0xFFFFFFFF), (208, 0xFFFFFFF0),
(240, 0x3F000000),
                                             (241, 0xBF000000), (242, 0x3F800000), (245, 0xC0000000), (246, 0x40800000),
                                             (248, 0x3E22F983)])  # fmt: skip
def test_inline_constants_have_their_values(bench: Bench, code: int, value: int) -> None:
    bench.step(instruction("s_mov_b32", form="", src=(code,), dst=5))
    assert int(bench.s[5]) == value


def test_scc_vcc_and_exec_can_be_read_as_operands(bench: Bench) -> None:
    bench.wave.scc, bench.exec = 1, 0x123456789ABCDEF0
    bench.set_s64(VCC, 0x0FEDCBA987654321)
    for code, want in ((SCC, 1), (VCC, 0x87654321), (VCC + 1, 0x0FEDCBA9), (126, 0x9ABCDEF0)):
        bench.step(instruction("s_mov_b32", form="", src=(code,), dst=5))
        assert int(bench.s[5]) == want
    bench.exec = (1 << 64) - 1


def test_neg_and_abs_act_before_the_operation(bench: Bench) -> None:
    bench.set_row(V + 1, [d.float_bits(-3.0)] * 64)
    bench.set_row(V + 2, [d.float_bits(2.0)] * 64)
    bench.step(instruction("v_mul_f32", src=(V + 1, V + 2), dst=V + 3, neg=2, absolute=1))
    assert bench.get_row(V + 3) == [d.float_bits(-6.0)] * 64


def test_agprs_are_registers_of_their_own(bench: Bench) -> None:
    bench.set_row(V + 7, range(64))
    bench.step(instruction("v_accvgpr_write_b32", form="", src=(V + 7,), dst=A + 7))
    bench.set_row(V + 7, [99] * 64)
    bench.step(instruction("v_accvgpr_read_b32", form="", src=(A + 7,), dst=V + 8))
    bench.step(instruction("v_accvgpr_mov_b32", form="", src=(A + 7,), dst=A + 9))
    assert bench.get_row(V + 8) == list(range(64)) == bench.get_row(A + 9)
