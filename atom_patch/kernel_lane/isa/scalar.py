"""Scalar arithmetic: SOP1, SOP2, SOPK, SOPC."""

# ruff: noqa: E501 - a table: one opcode per line
from __future__ import annotations

from kernel_lane.isa.opcode import Opcode, table

_SOP2 = table("SOP2", "scalar", """
    0  s_add_u32          u64 t = (u64)S0.u + S1.u; SCC = t >> 32; D.u = (u32)t;
    1  s_sub_u32          SCC = S0.u < S1.u; D.u = S0.u - S1.u;
    2  s_add_i32          i64 t = (i64)S0.i + S1.i; SCC = t != (i32)t; D.u = (u32)t;
    3  s_sub_i32          i64 t = (i64)S0.i - S1.i; SCC = t != (i32)t; D.u = (u32)t;
    4  s_addc_u32         u64 t = (u64)S0.u + S1.u + SCC; SCC = t >> 32; D.u = (u32)t;
    5  s_subb_u32         i64 t = (i64)S0.u - S1.u - SCC; SCC = t < 0; D.u = (u32)t;
    6  s_min_i32          SCC = S0.i < S1.i; D.i = SCC ? S0.i : S1.i;
    7  s_min_u32          SCC = S0.u < S1.u; D.u = SCC ? S0.u : S1.u;
    8  s_max_i32          SCC = S0.i > S1.i; D.i = SCC ? S0.i : S1.i;
    9  s_max_u32          SCC = S0.u > S1.u; D.u = SCC ? S0.u : S1.u;
    10 s_cselect_b32      D.u = SCC ? S0.u : S1.u;
    11 s_cselect_b64      D.u64 = SCC ? S0.u64 : S1.u64;
    12 s_and_b32          u32 t = S0.u & S1.u; SCC = t != 0; D.u = t;
    13 s_and_b64          u64 t = S0.u64 & S1.u64; SCC = t != 0; D.u64 = t;
    14 s_or_b32           u32 t = S0.u | S1.u; SCC = t != 0; D.u = t;
    15 s_or_b64           u64 t = S0.u64 | S1.u64; SCC = t != 0; D.u64 = t;
    16 s_xor_b32          u32 t = S0.u ^ S1.u; SCC = t != 0; D.u = t;
    17 s_xor_b64          u64 t = S0.u64 ^ S1.u64; SCC = t != 0; D.u64 = t;
    18 s_andn2_b32        u32 t = S0.u & ~S1.u; SCC = t != 0; D.u = t;
    19 s_andn2_b64        u64 t = S0.u64 & ~S1.u64; SCC = t != 0; D.u64 = t;
    20 s_orn2_b32         u32 t = S0.u | ~S1.u; SCC = t != 0; D.u = t;
    21 s_orn2_b64         u64 t = S0.u64 | ~S1.u64; SCC = t != 0; D.u64 = t;
    28 s_lshl_b32         u32 t = S0.u << (S1.u & 31); SCC = t != 0; D.u = t;
    29 s_lshl_b64         u64 t = S0.u64 << (S1.u & 63); SCC = t != 0; D.u64 = t;
    30 s_lshr_b32         u32 t = S0.u >> (S1.u & 31); SCC = t != 0; D.u = t;
    31 s_lshr_b64         u64 t = S0.u64 >> (S1.u & 63); SCC = t != 0; D.u64 = t;
    32 s_ashr_i32         i32 t = S0.i >> (S1.u & 31); SCC = t != 0; D.i = t;
    33 s_ashr_i64         i64 t = S0.i64 >> (S1.u & 63); SCC = t != 0; D.i64 = t;
    34 s_bfm_b32          D.u = ((1u << (S0.u & 31)) - 1) << (S1.u & 31);
    36 s_mul_i32          D.u = S0.u * S1.u;
    37 s_bfe_u32          u32 n = S1.u >> 16 & 127; u32 t = n ? (u32)((S0.u >> (S1.u & 31)) & ((1ull << (n > 32 ? 32 : n)) - 1)) : 0; SCC = t != 0; D.u = t;
    38 s_bfe_i32          u32 n = S1.u >> 16 & 127; u32 o = S1.u & 31; i32 t = n ? (n + o < 32 ? (i32)(S0.u << (32 - n - o)) >> (32 - n) : S0.i >> o) : 0; SCC = t != 0; D.i = t;
    44 s_mul_hi_u32       D.u = (u32)((u64)S0.u * S1.u >> 32);
    45 s_mul_hi_i32       D.u = (u32)((i64)S0.i * S1.i >> 32);
    46 s_lshl1_add_u32    u64 t = ((u64)S0.u << 1) + S1.u; SCC = t >> 32 != 0; D.u = (u32)t;
    47 s_lshl2_add_u32    u64 t = ((u64)S0.u << 2) + S1.u; SCC = t >> 32 != 0; D.u = (u32)t;
    48 s_lshl3_add_u32    u64 t = ((u64)S0.u << 3) + S1.u; SCC = t >> 32 != 0; D.u = (u32)t;
    49 s_lshl4_add_u32    u64 t = ((u64)S0.u << 4) + S1.u; SCC = t >> 32 != 0; D.u = (u32)t;
    50 s_pack_ll_b32_b16  D.u = S0.u16 | S1.u16 << 16;
""")  # fmt: skip

_SOP1 = table("SOP1", "scalar", """
    0  s_mov_b32            D.u = S0.u;
    1  s_mov_b64            D.u64 = S0.u64;
    4  s_not_b32            u32 t = ~S0.u; SCC = t != 0; D.u = t;
    5  s_not_b64            u64 t = ~S0.u64; SCC = t != 0; D.u64 = t;
    8  s_brev_b32           D.u = reverse_bits(S0.u);
    12 s_bcnt1_i32_b32      u32 t = popcount(S0.u); SCC = t != 0; D.u = t;
    13 s_bcnt1_i32_b64      u32 t = popcount(S0.u64); SCC = t != 0; D.u = t;
    16 s_ff1_i32_b32        D.u = S0.u ? lowest_bit(S0.u) : ~0u;
    17 s_ff1_i32_b64        D.u = S0.u64 ? lowest_bit(S0.u64) : ~0u;
    22 s_sext_i32_i8        D.i = (i32)(i8)S0.u8;
    23 s_sext_i32_i16       D.i = S0.i16;
    32 s_and_saveexec_b64   u64 t = S0.u64, e = EXEC; EXEC = t & e; SCC = EXEC != 0; D.u64 = e;
    33 s_or_saveexec_b64    u64 t = S0.u64, e = EXEC; EXEC = t | e; SCC = EXEC != 0; D.u64 = e;
    34 s_xor_saveexec_b64   u64 t = S0.u64, e = EXEC; EXEC = t ^ e; SCC = EXEC != 0; D.u64 = e;
    35 s_andn2_saveexec_b64 u64 t = S0.u64, e = EXEC; EXEC = t & ~e; SCC = EXEC != 0; D.u64 = e;
    48 s_abs_i32            u32 t = S0.i < 0 ? -S0.u : S0.u; SCC = t != 0; D.u = t;
""")  # fmt: skip

_SOPK = table("SOPK", "scalar", """
    0  s_movk_i32     D.i = K;
    2  s_cmpk_eq_i32  SCC = D.i == K;
    3  s_cmpk_lg_i32  SCC = D.i != K;
    4  s_cmpk_gt_i32  SCC = D.i > K;
    5  s_cmpk_ge_i32  SCC = D.i >= K;
    6  s_cmpk_lt_i32  SCC = D.i < K;
    7  s_cmpk_le_i32  SCC = D.i <= K;
    8  s_cmpk_eq_u32  SCC = D.u == (u16)K;
    9  s_cmpk_lg_u32  SCC = D.u != (u16)K;
    10 s_cmpk_gt_u32  SCC = D.u > (u16)K;
    11 s_cmpk_ge_u32  SCC = D.u >= (u16)K;
    12 s_cmpk_lt_u32  SCC = D.u < (u16)K;
    13 s_cmpk_le_u32  SCC = D.u <= (u16)K;
    14 s_addk_i32     i64 t = (i64)D.i + K; SCC = t != (i32)t; D.u = (u32)t;
    15 s_mulk_i32     D.u = D.u * (u32)(i32)K;
""")  # fmt: skip

_SOPC = table("SOPC", "scalar", """
    0  s_cmp_eq_i32   SCC = S0.i == S1.i;
    1  s_cmp_lg_i32   SCC = S0.i != S1.i;
    2  s_cmp_gt_i32   SCC = S0.i > S1.i;
    3  s_cmp_ge_i32   SCC = S0.i >= S1.i;
    4  s_cmp_lt_i32   SCC = S0.i < S1.i;
    5  s_cmp_le_i32   SCC = S0.i <= S1.i;
    6  s_cmp_eq_u32   SCC = S0.u == S1.u;
    7  s_cmp_lg_u32   SCC = S0.u != S1.u;
    8  s_cmp_gt_u32   SCC = S0.u > S1.u;
    9  s_cmp_ge_u32   SCC = S0.u >= S1.u;
    10 s_cmp_lt_u32   SCC = S0.u < S1.u;
    11 s_cmp_le_u32   SCC = S0.u <= S1.u;
    12 s_bitcmp0_b32  SCC = !(S0.u >> (S1.u & 31) & 1);
    13 s_bitcmp1_b32  SCC = S0.u >> (S1.u & 31) & 1;
    18 s_cmp_eq_u64   SCC = S0.u64 == S1.u64;
    19 s_cmp_lg_u64   SCC = S0.u64 != S1.u64;
""")  # fmt: skip

OPCODES: list[Opcode] = [*_SOP2, *_SOP1, *_SOPK, *_SOPC]
