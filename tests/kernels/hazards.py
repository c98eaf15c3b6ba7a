"""Pairs of instructions as LLVM's machine code text, for its hazard recogniser to say how far apart they must be."""

from __future__ import annotations


def _row(first: int, words: int) -> str:
    return "$" + "_".join(f"vgpr{n}" for n in range(first, first + words))


def _product(dst: int, start: int, *, factor: int = 40, form: str = "f8_f8") -> str:
    words, code = (8, 0) if form == "f8_f8" else (4, 4)
    return (
        f"{_row(dst, 4)} = V_MFMA_F32_16X16X128_F8F6F4_{form}_vgprcd_e64 {_row(factor, words)}, {_row(60, words)}, "
        f"{_row(start, 4)}, {code}, {code}, implicit $mode, implicit $exec"
    )


def _move(dst: int) -> str:
    return f"$vgpr{dst} = V_MOV_B32_e32 0, implicit $exec"


_MASK = "$sgpr20_sgpr21 = V_CMP_EQ_U32_e64 $vgpr1, $vgpr2, implicit $exec"
_LANES = "V_CMPX_EQ_U32_e32 $vgpr1, $vgpr2, implicit-def $exec, implicit-def $vcc, implicit $exec"
_MOVED = "$vgpr5 = V_MOV_B32_dpp $vgpr5, $vgpr3, 273, 15, 15, 0, implicit $exec"
_FIRST = "$sgpr4 = V_READFIRSTLANE_B32 $vgpr3, implicit $exec"
# The name of the pair in test_lint_silicon.CASES: its two instructions.
PAIRS = {
    "fp8 product, read": (_product(0, 0), "$vgpr9 = V_MOV_B32_e32 $vgpr3, implicit $exec"),
    "fp4 product, read": (_product(0, 0, form="f4_f4"), "$vgpr9 = V_MOV_B32_e32 $vgpr3, implicit $exec"),
    "fp8 product, overwritten by a move": (_product(0, 0), _move(3)),
    "fp8 product, factor of the next": (_product(0, 0), _product(80, 80, factor=0)),
    "fp4 product, factor of the next": (_product(0, 0, form="f4_f4"), _product(80, 80, factor=0, form="f4_f4")),
    "fp8 product, the next one's sum": (_product(0, 0), _product(80, 0)),
    "fp8 product, half of the next one's sum": (_product(0, 0), _product(80, 2)),
    "fp4 product, half of the next one's sum": (_product(0, 0, form="f4_f4"), _product(80, 2, form="f4_f4")),
    "a sum's start, overwritten": (_product(80, 0), _move(1)),
    "a sum's start, overwritten after fp4": (_product(80, 0, form="f4_f4"), _move(1)),
    "a factor of a product": (_move(41), _product(0, 0)),
    "lanes chosen before a product": (_LANES, _product(0, 0)),
    "a mask that chooses a lane": (_MASK, "$sgpr9 = V_READLANE_B32 $vgpr3, $sgpr20"),
    "a result whose lanes are moved": (_move(3), _MOVED),
    "lanes chosen before lanes are moved": (_LANES, _MOVED),
    "a result that is swapped": (
        _move(3), "$vgpr3, $vgpr5 = V_PERMLANE32_SWAP_B32_e32 killed $vgpr3, killed $vgpr5, implicit $exec",
    ),
    "a result of which the first lane is read": (_move(3), _FIRST),
    "lanes chosen before one is read": (_LANES, _FIRST),
    "an exponential, used": (
        "$vgpr2 = V_EXP_F32_e32 $vgpr1, implicit $mode, implicit $exec",
        "$vgpr3 = V_MOV_B32_e32 $vgpr2, implicit $exec",
    ),
    "a half that was written": (
        "$vgpr2 = V_MOV_B32_sdwa 0, $vgpr1, 0, 5, 2, 6, implicit $exec, implicit $vgpr2(tied-def 0)",
        "$vgpr3 = V_MOV_B32_e32 $vgpr2, implicit $exec",
    ),
    "a wide store's data, overwritten": (
        f"GLOBAL_STORE_DWORDX4 $vgpr90_vgpr91, {_row(4, 4)}, 0, 0, implicit $exec", _move(7),
    ),
}  # fmt: skip


def machine_text() -> str:
    """One function per pair."""
    return "".join(
        f"---\nname: pair{n}\nbody: |\n  bb.0:\n    {first}\n    {second}\n    S_ENDPGM 0\n...\n"
        for n, (first, second) in enumerate(PAIRS.values())
    )
