"""Lane-wise arithmetic: VOP1, VOP2, VOPC and VOP3, one result per active lane."""

# ruff: noqa: E501 - a table: one opcode per line
from __future__ import annotations

from kernel_lane.isa.opcode import Opcode, table

_VOP1 = table("VOP1", "lane", """
    1  v_mov_b32         D.u = S0.u;
    5  v_cvt_f32_i32     D.f = (float)S0.i;
    6  v_cvt_f32_u32     D.f = (float)S0.u;
    7  v_cvt_u32_f32     D.u = float_to_u32(S0.f);
    8  v_cvt_i32_f32     D.i = float_to_i32(S0.f);
    17 v_cvt_f32_ubyte0  D.f = (float)S0.u8;
    28 v_trunc_f32       D.f = truncf(S0.f);
    29 v_ceil_f32        D.f = ceilf(S0.f);
    30 v_rndne_f32       D.f = rintf(S0.f);
    31 v_floor_f32       D.f = floorf(S0.f);
    32 v_exp_f32         D.f = flush((float)exp2((double)flush(S0.f)));
    33 v_log_f32         D.f = flush((float)log2((double)flush(S0.f)));
    34 v_rcp_f32         D.f = flush((float)(1.0 / (double)flush(S0.f)));
    35 v_rcp_iflag_f32   D.f = flush((float)(1.0 / (double)flush(S0.f)));
    36 v_rsq_f32         D.f = flush((float)(1.0 / sqrt((double)flush(S0.f))));
    39 v_sqrt_f32        D.f = sqrtf(flush(S0.f));
    43 v_not_b32         D.u = ~S0.u;
    44 v_bfrev_b32       D.u = reverse_bits(S0.u);
    45 v_ffbh_u32        D.u = S0.u ? highest_zeros(S0.u) : ~0u;
    46 v_ffbl_b32        D.u = S0.u ? lowest_bit(S0.u) : ~0u;
    56 v_mov_b64         D.u64 = S0.u64;
""")  # fmt: skip

_VOP2 = table("VOP2", "lane", """
    0  v_cndmask_b32     D.u = CIN ? S1.u : S0.u;
    1  v_add_f32         D.f = S0.f + S1.f;
    2  v_sub_f32         D.f = S0.f - S1.f;
    3  v_subrev_f32      D.f = S1.f - S0.f;
    5  v_mul_f32         D.f = S0.f * S1.f;
    6  v_mul_i32_i24     D.u = (u32)(((i64)(S0.i << 8) >> 8) * ((i64)(S1.i << 8) >> 8));
    8  v_mul_u32_u24     D.u = (S0.u & 0xFFFFFF) * (S1.u & 0xFFFFFF);
    10 v_min_f32         D.f = min_f32(S0.f, S1.f);
    11 v_max_f32         D.f = max_f32(S0.f, S1.f);
    12 v_min_i32         D.i = S0.i < S1.i ? S0.i : S1.i;
    13 v_max_i32         D.i = S0.i > S1.i ? S0.i : S1.i;
    14 v_min_u32         D.u = S0.u < S1.u ? S0.u : S1.u;
    15 v_max_u32         D.u = S0.u > S1.u ? S0.u : S1.u;
    16 v_lshrrev_b32     D.u = S1.u >> (S0.u & 31);
    17 v_ashrrev_i32     D.i = S1.i >> (S0.u & 31);
    18 v_lshlrev_b32     D.u = S1.u << (S0.u & 31);
    19 v_and_b32         D.u = S0.u & S1.u;
    20 v_or_b32          D.u = S0.u | S1.u;
    21 v_xor_b32         D.u = S0.u ^ S1.u;
    25 v_add_co_u32      u64 t = (u64)S0.u + S1.u; COUT = t >> 32; D.u = (u32)t;
    26 v_sub_co_u32      COUT = S0.u < S1.u; D.u = S0.u - S1.u;
    27 v_subrev_co_u32   COUT = S1.u < S0.u; D.u = S1.u - S0.u;
    28 v_addc_co_u32     u64 t = (u64)S0.u + S1.u + CIN; COUT = t >> 32; D.u = (u32)t;
    29 v_subb_co_u32     i64 t = (i64)S0.u - S1.u - CIN; COUT = t < 0; D.u = (u32)t;
    30 v_subbrev_co_u32  i64 t = (i64)S1.u - S0.u - CIN; COUT = t < 0; D.u = (u32)t;
    38 v_add_u16         D.u = (S0.u + S1.u) & 0xFFFF;
    39 v_sub_u16         D.u = (S0.u - S1.u) & 0xFFFF;
    41 v_mul_lo_u16      D.u = (S0.u16 * S1.u16) & 0xFFFF;
    42 v_lshlrev_b16     D.u = (S1.u << (S0.u & 15)) & 0xFFFF;
    43 v_lshrrev_b16     D.u = S1.u16 >> (S0.u & 15);
    44 v_ashrrev_i16     D.u = (u16)(S1.i16 >> (S0.u & 15));
    47 v_max_u16         D.u = S0.u16 > S1.u16 ? S0.u16 : S1.u16;
    48 v_max_i16         D.u = (u16)(S0.i16 > S1.i16 ? S0.i16 : S1.i16);
    49 v_min_u16         D.u = S0.u16 < S1.u16 ? S0.u16 : S1.u16;
    50 v_min_i16         D.u = (u16)(S0.i16 < S1.i16 ? S0.i16 : S1.i16);
    52 v_add_u32         D.u = S0.u + S1.u;
    53 v_sub_u32         D.u = S0.u - S1.u;
    54 v_subrev_u32      D.u = S1.u - S0.u;
    59 v_fmac_f32        D.f = fma32(S0.f, S1.f, D.f);
    61 v_xnor_b32        D.u = ~(S0.u ^ S1.u);
""")  # fmt: skip
_VOP2 += table("VOP2", "lane", "23 v_fmamk_f32  D.f = fma32(S0.f, S2.f, S1.f);", literal="K_IS_S2", reads=(1, 1, 1))
_VOP2 += table("VOP2", "lane", "24 v_fmaak_f32  D.f = fma32(S0.f, S1.f, S2.f);", literal="K_IS_S2", reads=(1, 1, 1))

_INTEGER = {"lt": "<", "eq": "==", "le": "<=", "gt": ">", "ne": "!=", "ge": ">="}
_VOPC = [
    row
    for base, kind in ((192, "i32"), (200, "u32"), (224, "i64"), (232, "u64"), (160, "i16"), (168, "u16"))
    for n, (word, sign) in enumerate(_INTEGER.items(), start=1)
    for view in [{"i32": "i", "u32": "u"}.get(kind, kind)]
    for row in table("VOPC", "lane", f"{base + n} v_cmp_{word}_{kind} P = S0.{view} {sign} S1.{view};")
]
_VOPC += table("VOPC", "lane", """
    65 v_cmp_lt_f32   P = S0.f < S1.f;
    66 v_cmp_eq_f32   P = S0.f == S1.f;
    67 v_cmp_le_f32   P = S0.f <= S1.f;
    68 v_cmp_gt_f32   P = S0.f > S1.f;
    69 v_cmp_lg_f32   P = S0.f < S1.f || S0.f > S1.f;
    70 v_cmp_ge_f32   P = S0.f >= S1.f;
    71 v_cmp_o_f32    P = S0.f == S0.f && S1.f == S1.f;
    72 v_cmp_u_f32    P = S0.f != S0.f || S1.f != S1.f;
    73 v_cmp_nge_f32  P = !(S0.f >= S1.f);
    75 v_cmp_ngt_f32  P = !(S0.f > S1.f);
    76 v_cmp_nle_f32  P = !(S0.f <= S1.f);
    77 v_cmp_neq_f32  P = S0.f != S1.f;
    78 v_cmp_nlt_f32  P = !(S0.f < S1.f);
""")  # fmt: skip

# With the clamp bit an integer opcode saturates: another result, so an opcode of its own, 1024 above its VOP3 number.
_CLAMPED = table("VOP3", "lane", "1333 v_sub_u32_clamp D.u = S0.u > S1.u ? S0.u - S1.u : 0;")

_VOP3 = table("VOP3", "lane", """
    450 v_mad_i32_i24     D.u = (u32)(((i64)(S0.i << 8) >> 8) * ((i64)(S1.i << 8) >> 8) + S2.i);
    451 v_mad_u32_u24     D.u = (S0.u & 0xFFFFFF) * (S1.u & 0xFFFFFF) + S2.u;
    456 v_bfe_u32         D.u = (S0.u >> (S1.u & 31)) & ((1u << (S2.u & 31)) - 1);
    457 v_bfe_i32         D.i = S2.u & 31 ? (i32)((u32)(S0.i >> (S1.u & 31)) << (32 - (S2.u & 31))) >> (32 - (S2.u & 31)) : 0;
    458 v_bfi_b32         D.u = (S0.u & S1.u) | (~S0.u & S2.u);
    459 v_fma_f32         D.f = fma32(S0.f, S1.f, S2.f);
    462 v_alignbit_b32    D.u = (u32)(((u64)S0.u << 32 | S1.u) >> (S2.u & 31));
    463 v_alignbyte_b32   D.u = (u32)(((u64)S0.u << 32 | S1.u) >> 8 * (S2.u & 3));
    464 v_min3_f32        D.f = min_f32(min_f32(S0.f, S1.f), S2.f);
    465 v_min3_i32        i32 t = S0.i < S1.i ? S0.i : S1.i; D.i = t < S2.i ? t : S2.i;
    466 v_min3_u32        u32 t = S0.u < S1.u ? S0.u : S1.u; D.u = t < S2.u ? t : S2.u;
    467 v_max3_f32        D.f = max_f32(max_f32(S0.f, S1.f), S2.f);
    468 v_max3_i32        i32 t = S0.i > S1.i ? S0.i : S1.i; D.i = t > S2.i ? t : S2.i;
    469 v_max3_u32        u32 t = S0.u > S1.u ? S0.u : S1.u; D.u = t > S2.u ? t : S2.u;
    470 v_med3_f32        D.f = med3_f32(S0.f, S1.f, S2.f);
    493 v_perm_b32        D.u = select_bytes(S0.u, S1.u, S2.u);
    499 v_xad_u32         D.u = (S0.u ^ S1.u) + S2.u;
    509 v_lshl_add_u32    D.u = (S0.u << (S1.u & 31)) + S2.u;
    510 v_add_lshl_u32    D.u = (S0.u + S1.u) << (S2.u & 31);
    511 v_add3_u32        D.u = S0.u + S1.u + S2.u;
    512 v_lshl_or_b32     D.u = (S0.u << (S1.u & 31)) | S2.u;
    513 v_and_or_b32      D.u = (S0.u & S1.u) | S2.u;
    514 v_or3_b32         D.u = S0.u | S1.u | S2.u;
    520 v_lshl_add_u64    D.u64 = (S0.u64 << (S1.u & 7)) + S2.u64;
    564 v_bitop3_b32      D.u = truth_table(S0.u, S1.u, S2.u, IMM);
    573 v_cvt_scalef32_pk_fp4_f32  u32 s = SCALE(S2.u), t = to_fp4(scale_down(S0.f, s)) | to_fp4(scale_down(S1.f, s)) << 4; u32 o = OPSEL >> 2 & 3; D.u = (D.u & ~(0xFFu << 8 * o)) | t << 8 * o;
    616 v_cvt_pk_bf16_f32 D.u = to_bf16(S0.f) | to_bf16(S1.f) << 16;
    645 v_mul_lo_u32      D.u = S0.u * S1.u;
    646 v_mul_hi_u32      D.u = (u32)((u64)S0.u * S1.u >> 32);
    647 v_mul_hi_i32      D.u = (u32)((i64)S0.i * S1.i >> 32);
    648 v_ldexp_f32       D.f = scalbnf(S0.f, S1.i > 1000 ? 1000 : S1.i < -1000 ? -1000 : S1.i);
    651 v_bcnt_u32_b32    D.u = popcount(S0.u) + S1.u;
    652 v_mbcnt_lo_u32_b32  D.u = popcount(S0.u & (LANE < 32 ? (1u << LANE) - 1 : ~0u)) + S1.u;
    653 v_mbcnt_hi_u32_b32  D.u = popcount(S0.u & (LANE < 32 ? 0 : (1u << (LANE - 32)) - 1)) + S1.u;
    655 v_lshlrev_b64     D.u64 = S1.u64 << (S0.u & 63);
    656 v_lshrrev_b64     D.u64 = S1.u64 >> (S0.u & 63);
    657 v_ashrrev_i64     D.i64 = S1.i64 >> (S0.u & 63);
    659 v_bfm_b32         D.u = ((1u << (S0.u & 31)) - 1) << (S1.u & 31);
    674 v_cvt_pk_fp8_f32  u32 t = to_fp8(S0.f) | to_fp8(S1.f) << 8; D.u = OPSEL & 8 ? (D.u & 0xFFFF) | t << 16 : (D.u & 0xFFFF0000) | t;
    680 v_minimum3_f32    D.f = minimum_f32(minimum_f32(S0.f, S1.f), S2.f);
    681 v_maximum3_f32    D.f = maximum_f32(maximum_f32(S0.f, S1.f), S2.f);
""")  # fmt: skip
# The scalar destination of the wide multiply-adds receives bit 64 of the exact sum: a carry, or the sum's sign.
_VOP3 += table("VOP3", "lane", """
    488 v_mad_u64_u32     u64 p = (u64)S0.u * S1.u; u64 t = p + S2.u64; COUT = t < p; D.u64 = t;
    489 v_mad_i64_i32     __int128 t = (__int128)((i64)S0.i * S1.i) + S2.i64; COUT = t < 0; D.i64 = (i64)t;
""", carry="out")  # fmt: skip

OPCODES: list[Opcode] = [*_VOP1, *_VOP2, *_VOPC, *_VOP3, *_CLAMPED]
