"""A broken interpreter is found by its own opcode tests: twenty meanings changed, each change noticed."""

from __future__ import annotations

import ctypes
import dataclasses

import pytest
from bench import Bench
from kernel_lane import native
from kernel_lane.isa import BY_NAME, OPCODES
from kernel_lane.machine import LIBS, emit
from kernel_lane.machine.layout import connect
from test_opcodes import check

# opcode: (what stands in its meaning, what is put there)
MUTATIONS = {
    "v_add_u32": ("S0.u + S1.u", "S0.u - S1.u"),
    "v_lshlrev_b32": ("S0.u & 31", "S0.u & 15"),
    "v_ashrrev_i32": ("S1.i >> ", "S1.u >> "),
    "v_sub_co_u32": ("S0.u < S1.u", "S0.u <= S1.u"),
    "v_addc_co_u32": (" + CIN", ""),
    "v_cndmask_b32": ("CIN ? S1.u : S0.u", "CIN ? S0.u : S1.u"),
    "v_min_i32": ("S0.i < S1.i", "S0.u < S1.u"),
    "v_max_f32": ("max_f32", "maximum_f32"),
    "v_maximum3_f32": ("maximum_f32(maximum_f32", "maximum_f32(max_f32"),
    "v_fma_f32": ("fma32(S0.f, S1.f, S2.f)", "S0.f * S1.f + S2.f"),
    "v_cvt_pk_bf16_f32": ("to_bf16(S0.f)", "(from_f(S0.f) >> 16)"),
    "v_cvt_pk_fp8_f32": ("OPSEL & 8", "!(OPSEL & 8)"),
    "v_perm_b32": ("S0.u, S1.u", "S1.u, S0.u"),
    "v_bitop3_b32": ("S0.u, S1.u, S2.u", "S2.u, S1.u, S0.u"),
    "v_mbcnt_hi_u32_b32": ("LANE - 32", "LANE - 31"),
    "v_mul_hi_i32": ("(i64)S0.i * S1.i", "(i64)((u64)S0.u * S1.u)"),
    "v_cmp_ge_u32": (">=", ">"),
    "v_cmp_lt_i64": ("S0.i64 < S1.i64", "S0.u64 < S1.u64"),
    "s_sub_i32": ("SCC = t != (i32)t", "SCC = t < 0"),
    "s_and_saveexec_b64": ("D.u64 = e", "D.u64 = EXEC"),
    "s_bfe_u32": ("S1.u >> 16 & 127", "S1.u >> 16 & 31"),
    "s_cmpk_lt_u32": ("(u16)K", "(u32)K"),
}


@pytest.fixture(scope="module")
def broken() -> Bench:
    """One core with all changes in it: each is seen only through its own opcode's test."""
    changed = []
    for op in OPCODES:
        if op.name in MUTATIONS:
            before, after = MUTATIONS[op.name]
            assert before in op.meaning, op.name
            op = dataclasses.replace(op, meaning=op.meaning.replace(before, after, 1))
        changed.append(op)
    path = native.build("broken.so", emit.source(changed), ["-O0", "-ffp-contract=off", "-w", *LIBS])
    return Bench(connect(ctypes.CDLL(str(path))))


def test_at_least_twenty_opcodes_are_changed() -> None:
    assert len(MUTATIONS) >= 20


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_changed_meaning_is_noticed(name: str, broken: Bench) -> None:
    assert check(BY_NAME[name], broken, rounds=12) != ""
