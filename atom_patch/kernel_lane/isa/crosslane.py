"""Opcodes that see the whole wave at once: packed pairs, lane exchange, matrix products, accumulation registers.

`kind="wave"` meanings are C in which `row(n)` is the 64 lanes of source operand n (broadcast when scalar), `wide(n, k)`
lane values of register k of a multi-register operand, `dst(k)` register k of the destination, `ACTIVE(l)` the
execution bit of lane l; `put(k, values)` writes under the execution mask.
"""

# ruff: noqa: E501 - a table: one opcode per line
from __future__ import annotations

from kernel_lane.isa.opcode import Opcode

# Each half of a packed result takes for every source its low or its high register: op_sel for the low half, op_sel_hi
# for the high one.
_PAIR = """
    u32 lo[64], hi[64];
    const u32 *a0 = half(w, i, 0, 0), *b0 = half(w, i, 1, 0), *c0 = half(w, i, 2, 0);
    for (int l = 0; l < 64; l++) lo[l] = from_f(({expr}));
    const u32 *a1 = half(w, i, 0, 1), *b1 = half(w, i, 1, 1), *c1 = half(w, i, 2, 1);
    for (int l = 0; l < 64; l++) hi[l] = from_f(({expr_hi}));
    put(w, i->d, lo);
    put(w, i->d + 1, hi);
"""


def _packed(number: int, name: str, expr: str, sources: int) -> Opcode:
    low = expr.replace("A", "as_f(a0[l])").replace("B", "as_f(b0[l])").replace("C", "as_f(c0[l])")
    high = expr.replace("A", "as_f(a1[l])").replace("B", "as_f(b1[l])").replace("C", "as_f(c1[l])")
    body = _PAIR.replace("{expr}", low).replace("{expr_hi}", high)
    if sources == 2:
        body = body.replace(", *c0 = half(w, i, 2, 0)", "").replace(", *c1 = half(w, i, 2, 1)", "")
    return Opcode(name, "VOP3P", number, "wave", body, reads=(2,) * sources, writes=2, opsel=True)


OPCODES: list[Opcode] = [
    _packed(48, "v_pk_fma_f32", "fma32(A, B, C)", 3),
    _packed(49, "v_pk_mul_f32", "A * B", 2),
    _packed(50, "v_pk_add_f32", "A + B", 2),
    # op_sel alone chooses here: bit 0 the low result's register of source 0, bit 1 the high result's of source 1.
    Opcode("v_pk_mov_b32", "VOP3P", 51, "wave", """
        u32 lo[64], hi[64];
        memcpy(lo, half(w, i, 0, 0), sizeof lo);
        memcpy(hi, half(w, i, 1, 0), sizeof hi);
        put(w, i->d, lo);
        put(w, i->d + 1, hi);
    """, reads=(2, 2), writes=2, opsel=True),
    Opcode("v_accvgpr_read_b32", "VOP3P", 88, "wave", "put(w, i->d, row(w, i, 0));", reads=(1,), writes=1),
    Opcode("v_accvgpr_write_b32", "VOP3P", 89, "wave", "put(w, i->d, row(w, i, 0));", reads=(1,), writes=1),
    Opcode("v_accvgpr_mov_b32", "VOP1", 82, "wave", "put(w, i->d, row(w, i, 0));", reads=(1,), writes=1),
    Opcode("v_readfirstlane_b32", "VOP1", 2, "wave", """
        set_s32(w, i->d, row(w, i, 0)[exec_of(w) ? lowest_bit(exec_of(w)) : 0]);
    """, reads=(1,), writes=1),
    Opcode("v_readlane_b32", "VOP3", 649, "wave", "set_s32(w, i->d, row(w, i, 0)[get_s32(w, i, 1) & 63]);",
           reads=(1, 1), writes=1),
    Opcode("v_writelane_b32", "VOP3", 650, "wave", "reg(w, i->d)[get_s32(w, i, 1) & 63] = get_s32(w, i, 0);",
           reads=(1, 1), writes=1),
    # Row r of 16 (or 32) lanes: odd rows of the first operand change places with even rows of the second, whatever EXEC.
    Opcode("v_permlane16_swap_b32", "VOP1", 89, "wave", "swap_rows(reg(w, i->d), reg(w, i->s[0]), 16);", reads=(1,), writes=1),
    Opcode("v_permlane32_swap_b32", "VOP1", 90, "wave", "swap_rows(reg(w, i->d), reg(w, i->s[0]), 32);", reads=(1,), writes=1),
    # D[m][n] = C[m][n] + sum over k of A[m][k] * 2^(sa-127) * B[n][k] * 2^(sb-127): lane l holds row l % 16 of A and B.
    # fp8: k = 16*(l/16) + 0..15 in registers 0-3 and 64 + 16*(l/16) + 0..15 in 4-7; fp4: k = 32*(l/16) + 0..31, low
    # nibble first. The scale byte of lane l is for its row and k block l/16 (32 wide). Result register r, lane l:
    # m = 4*(l/16) + r, n = l % 16. EXEC is ignored.
    Opcode("v_mfma_scale_f32_16x16x128_f8f6f4", "VOP3P", 44, "wave", "mfma_16x16x128(w, i);", reads=(8, 8, 4), writes=4, opsel=True),
]  # fmt: skip
