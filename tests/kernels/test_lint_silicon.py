"""What gfx950's silicon asks beyond each instruction's meaning: wait states, and packed float32 next to matrix work.

The distances are LLVM's for gfx950, asked of its hazard recogniser where it is installed (hazards.py), but for buffer
stores with a register for their offset (llvm/llvm-project#197267, measured on gfx950). Most occur in FlyDSL's kernels,
too, not one state longer (tests/lane/test_real_kernels.py).
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from typing import Any

import pytest
from code_object import code_object
from hazards import PAIRS, machine_text
from kernel_lane.decode import Dpp, Instruction, Sdwa
from kernel_lane.isa import BY_NAME
from megamoe.kernels import lint
from megamoe.kernels.lint_flow import Flow
from megamoe.kernels.lint_silicon import Gap, gaps, packed_float_faults
from megamoe.kernels.lint_steps import step_of

V, A, M0, EXEC = 256, 512, 124, 126


def one(name: str, **fields: Any) -> Instruction:
    return Instruction(0, 4, BY_NAME[name], str(fields.pop("form", "e64")), **fields)


def nop(states: int) -> list[Instruction]:
    return [one("s_nop", form="", imm=states - 1)] if states else []


def program(*instructions: Instruction) -> list[Instruction]:
    return [dataclasses.replace(i, pc=4 * n) for n, i in enumerate((*instructions, one("s_endpgm", form="")))]


def found(code: list[Instruction]) -> list[Gap]:
    return list(gaps(code, Flow([step_of(i) for i in code])))


def product(dst: int, start: int, *, factor: int = V + 40, formats: tuple[int, int] = (0, 4)) -> Instruction:
    return one("v_mfma_scale_f32_16x16x128_f8f6f4", form="", src=(factor, V + 60, start, V + 70, V + 72), dst=dst,
               formats=formats)  # fmt: skip


def move(dst: int, src: int, **more: Any) -> Instruction:
    return one("v_mov_b32", src=(src,), dst=dst, **more)


def load(dst: int, base: int, address: int = V + 90) -> Instruction:
    return one("global_load_dword", form="", src=(address, -1, base), dst=dst)


FP8 = product(V, V)
FP4 = product(V, V, formats=(4, 4))
COMPARE = one("v_cmp_eq_u32", src=(V + 1, V + 2), sdst=20)
EXEC_BY_LANES = one("v_cmp_eq_u32", src=(V + 1, V + 2), sdst=EXEC)
MOVED = move(V + 5, V + 3, form="dpp", dpp=Dpp(0x111, 15, 15, True))
CASES = {
    "fp8 product, read": (FP8, move(V + 9, V + 3), 12),
    "fp4 product, read": (FP4, move(V + 9, V + 3), 8),
    "fp8 product, stored": (FP8, one("global_store_dword", form="", src=(V + 90, V + 3, 4)), 12),
    "fp8 product, to LDS": (FP8, one("ds_write_b32", form="", src=(V + 90, V + 3, -1)), 12),
    "fp8 product in accumulators, read": (product(A, A), one("v_accvgpr_read_b32", form="", src=(A,), dst=V + 9), 12),
    "fp8 product, overwritten by a move": (FP8, move(V + 3, 128), 12),
    "fp8 product, overwritten by a load": (FP8, load(V + 3, 4), 12),
    "fp8 product, factor of the next": (FP8, product(V + 80, V + 80, factor=V), 12),
    "fp4 product, factor of the next": (FP4, product(V + 80, V + 80, factor=V), 8),
    "fp8 product, the next one's sum": (FP8, product(V + 80, V), 0),
    "fp8 product, half of the next one's sum": (FP8, product(V + 80, V + 2), 10),
    "fp4 product, half of the next one's sum": (FP4, product(V + 80, V + 2), 6),
    "a sum's start, overwritten": (product(V + 80, V), move(V + 1, 128), 7),
    "a sum's start, overwritten after fp4": (product(V + 80, V, formats=(4, 4)), move(V + 1, 128), 3),
    "a factor of a product": (move(V + 41, 128), FP8, 2),
    "a scale of a product": (move(V + 70, 128), FP8, 2),
    "lanes chosen before a product": (EXEC_BY_LANES, FP8, 4),
    "a first lane as an address": (one("v_readfirstlane_b32", form="e32", src=(V,), dst=4), load(V + 9, 4), 5),
    "a first lane as a descriptor": (
        one("v_readfirstlane_b32", form="e32", src=(V,), dst=7),
        one("buffer_load_dword", form="", src=(V + 9, -1, 4, 128), dst=V + 10), 5,
    ),
    "a comparison's mask, used": (COMPARE, one("v_cndmask_b32", src=(V + 3, V + 4, 20), dst=V + 5), 2),
    "a comparison's mask, by a scalar": (COMPARE, one("s_mov_b64", form="", src=(20,), dst=22), 0),
    "a mask that chooses a lane": (COMPARE, one("v_readlane_b32", src=(V + 3, 20), dst=9), 4),
    "a mask written into a lane": (COMPARE, one("v_writelane_b32", src=(20, 9), dst=V + 3), 2),
    "a result whose lanes are moved": (move(V + 3, 128), MOVED, 2),
    "lanes chosen before lanes are moved": (EXEC_BY_LANES, MOVED, 5),
    "a result that is swapped": (
        move(V + 3, 128), one("v_permlane32_swap_b32", form="e32", src=(V + 3,), dst=V + 5), 2,
    ),
    "a result that is swapped into": (
        move(V + 5, 128), one("v_permlane32_swap_b32", form="e32", src=(V + 3,), dst=V + 5), 2,
    ),
    "a result of which the first lane is read": (
        move(V + 3, 128), one("v_readfirstlane_b32", form="e32", src=(V + 3,), dst=4), 1,
    ),
    "lanes chosen before one is read": (
        EXEC_BY_LANES, one("v_readfirstlane_b32", form="e32", src=(V + 3,), dst=4), 4,
    ),
    "an exponential, used": (one("v_exp_f32", src=(V + 1,), dst=V + 2), move(V + 3, V + 2), 1),
    "an exponential, added to": (
        one("v_exp_f32", src=(V + 1,), dst=V + 2), one("v_fmac_f32", form="e32", src=(V + 3, V + 4), dst=V + 2), 1,
    ),
    "an exponential of an exponential": (
        one("v_exp_f32", src=(V + 1,), dst=V + 2), one("v_exp_f32", src=(V + 2,), dst=V + 3), 0,
    ),
    "a half that was written": (
        move(V + 2, V + 1, form="sdwa", sdwa=Sdwa(dst=5, unused=2)), move(V + 3, V + 2), 1,
    ),
    "a wide store's data, overwritten": (
        one("global_store_dwordx4", form="", src=(V + 90, V + 4, 4)), move(V + 7, 128), 2,
    ),
    "a wide buffer store's data, overwritten": (
        one("buffer_store_dwordx4", form="", src=(V + 90, V + 4, 8, 128)), move(V + 7, 128), 2,
    ),
    "a wide buffer store's data, with a register for its offset": (
        one("buffer_store_dwordx4", form="", src=(V + 90, V + 4, 8, 20)), move(V + 7, 128), 1,
    ),
    "a narrow store's data, overwritten": (
        one("global_store_dwordx2", form="", src=(V + 90, V + 4, 4)), move(V + 5, 128), 0,
    ),
    "M0 before a copy to LDS": (
        one("s_mov_b32", form="", src=(4,), dst=M0),
        one("buffer_load_dword", form="", src=(V + 1, -1, 8, 128), flags=frozenset({"lds", "offen"})), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "states"), CASES.values(), ids=CASES)
def test_as_many_wait_states_as_the_hardware_needs_and_no_fewer(
    first: Instruction, second: Instruction, states: int
) -> None:
    assert found(program(first, *nop(states), second)) == []
    if states:
        (gap,) = found(program(first, *nop(states - 1), second))
        assert (gap.have, gap.want) == (states - 1, states)
    else:
        assert found(program(first, second)) == []


def test_the_distances_are_those_of_llvm() -> None:
    program = next((p for n in range(25, 20, -1) if (p := shutil.which(f"llc-{n}"))), None)
    if program is None:
        pytest.skip("no llc of LLVM 21 to 25 is installed (older ones keep shorter distances)")
    words = [program, "-mtriple=amdgcn", "-mcpu=gfx950", "-run-pass=post-RA-hazard-rec", "-x=mir", "-o=-", "-"]
    done = subprocess.run(words, input=machine_text(), capture_output=True, text=True, timeout=60, check=True)
    functions = re.split(r"^name: +pair", done.stdout, flags=re.MULTILINE)[1:]
    states = [sum(int(n) + 1 for n in re.findall(r"S_NOP (\d+)", text)) for text in functions]
    assert dict(zip(PAIRS, states, strict=True)) == {name: CASES[name][2] for name in PAIRS}


def test_other_instructions_are_wait_states_too() -> None:
    others = [one("s_mov_b32", form="", src=(4,), dst=5)] * 5
    assert found(program(FP8, *others, *nop(7), move(V + 9, V))) == []
    assert found(program(FP8, *others, *nop(6), move(V + 9, V))) != []


def test_the_shorter_of_two_paths_counts() -> None:
    """A branch around the waiting: what follows may come at once."""
    jump = one("s_cbranch_scc1", form="", target=12)
    code = program(FP8, jump, *nop(12), move(V + 9, V))
    assert [g.have for g in found(code)] == [1]
    back = one("s_cbranch_scc1", form="", target=0)
    loop = program(move(V + 9, V), *nop(3), FP8, back)
    assert [(g.second.pc, g.have) for g in found(loop)] == [(0, 1)], "round the loop"


def test_a_product_between_that_writes_the_same_registers_is_the_one_that_counts() -> None:
    """Matrix products come out in order."""
    assert found(program(product(V + 2, V + 2), product(V, V + 2), product(V, V))) == []
    assert found(program(product(V + 2, V + 2), product(V + 80, V + 80), product(V, V))) != []


def test_packed_float32_is_refused_in_the_one_form_that_gfx950_gets_wrong() -> None:
    for name in ("v_pk_mul_f32", "v_pk_add_f32", "v_pk_fma_f32"):
        sources = (V + 2, V + 4, V + 6)[: 3 if "fma" in name else 2]
        for opsel in range(4):
            code = program(one(name, form="", src=sources, dst=V, opsel=opsel, opsel_hi=3))
            assert len(packed_float_faults(code)) == (opsel == 2), (name, opsel)
    assert packed_float_faults(program(one("v_pk_mov_b32", form="", src=(V + 2, V + 4), dst=V, opsel=2))) == []


PRODUCT = "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:15], v[0:3], v16, v17 op_sel_hi:[0,0,0] blgp:4"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"{PRODUCT}\n s_nop 10\n v_mov_b32_e32 v16, v0", "wait_states"),
        (f"{PRODUCT}\n s_nop 11\n v_mov_b32_e32 v16, v0", ""),
        ("v_exp_f32_e32 v2, v1\n v_add_f32_e32 v3, v2, v2", "wait_states"),
        ("v_exp_f32_e32 v2, v1\n s_nop 0\n v_add_f32_e32 v3, v2, v2", ""),
        ("v_readfirstlane_b32 s4, v0\n s_nop 3\n global_load_dword v5, v6, s[4:5]", "wait_states"),
        ("v_readfirstlane_b32 s4, v0\n s_nop 4\n global_load_dword v5, v6, s[4:5]", ""),
        ("v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel:[0,1] op_sel_hi:[1,0]", "packed_float32"),
        ("v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel:[1,0] op_sel_hi:[0,1]", ""),
        ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] op_sel:[0,1,0]", "packed_float32"),
        ("v_pk_add_f32 v[0:1], v[2:3], v[4:5]", ""),
        ("v_pk_add_f32 v[0:1], v[2:3], v[4:5] op_sel:[1,1]", ""),
    ],
)
def test_the_linter_tells_both_by_machine_code(text: str, code: str) -> None:
    data = code_object(f"{text}\n s_endpgm", vgprs=24)
    outcome = lint.judge([lint.Image("k.hsaco", data, {})], cu_count=256)
    assert [f.code for f in outcome.findings] == ([code] if code else [])
    assert all(f.why and f.fix and "0x" in f.what for f in outcome.findings)
