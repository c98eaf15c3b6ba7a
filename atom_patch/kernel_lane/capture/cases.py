"""The layers that are captured: sizes, form of the kernels, inputs by formula.

Smallest legal sizes of a8w4 at 8acf56d: H 512 with stage-1 tiles of 64 rows and 1024 with 32, I a multiple of 256.
Small CU counts keep the co-resident grids small. Tiny sets can hide faults: waits that let waves read a tile too early
(L1) show only where tiles are full and K has at least four steps (`dense`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from megamoe_atom.problem import Exit, Problem


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward: tokens per rank, routing and activations by formula (formula.py)."""

    tokens: tuple[int, ...]
    routing: str = "spread"
    activation: str = "bell"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """`arguments` go to MegaMoE's constructor as they are; `compact` None leaves the choice to upstream."""

    name: str
    ranks: int
    hidden: int
    inter: int
    experts: int
    topk: int
    mtpr: int
    forwards: tuple[Forward, ...]
    cu: int = 3
    quant: str = "a8w4"
    compact: bool | None = None
    combine: tuple[int, int] | None = (2, 4)
    swiglu_limit: float = 0.0
    scale_codes: tuple[int, int] = (118, 122)
    arguments: dict[str, Any] = field(default_factory=dict)
    seed: int = 100
    why: str = ""
    golden: str = ""

    def compacted(self, name: str) -> Case:
        return replace(self, name=name, compact=True)


_MICRO = Case("micro", 1, 512, 256, 4, 2, 16, (Forward((5,)),), golden="micro", why="smallest fixed-slot layer")
_U32 = {"tile_m": 32, "tile_n": 256, "gemm2_tile_m": 16, "gemm2_tile_n": 128, "gemm2_tile_k": 256}
_W8 = (3, 6, 1, 3, 6, 1, 3, 6)
_CHANGING = tuple(Forward(_W8, seed=50 * k) for k in range(3))
_W8_CHANGING = Case("w8_changing", 8, 512, 256, 16, 3, 8, _CHANGING,
                    why="eight ranks, another routing in every forward (E9)")  # fmt: skip
_DENSE = Case("dense", 1, 1024, 256, 2, 2, 64, (Forward((64,)),), cu=3,
              why="full 64-row tiles and four K-steps: the counted wait (L1)")  # fmt: skip
_W8_DENSE = Case("w8_dense", 8, 1024, 256, 8, 2, 64, tuple(Forward((40,) * 8, seed=50 * k) for k in range(2)), cu=8,
                 why="eight ranks, full tiles, four K-steps, another routing in the second forward (L1)")  # fmt: skip

CASES: dict[str, Case] = {
    c.name: c
    for c in (
        _MICRO,
        replace(_MICRO.compacted("micro_compact"), golden="micro_compact", why="smallest compact layer"),
        replace(_MICRO, name="micro_noasync", arguments={"use_async_copy": False}, golden="", why="no copies to LDS"),
        Case("micro_u32", 1, 1024, 256, 4, 2, 16, (Forward((5,)),), arguments=_U32, golden="micro_u32",
        why="32-row tiles"),
        Case("small", 1, 1024, 256, 8, 2, 64, (Forward((40,)),), cu=8, combine=(4, 4), golden="small",
        why="XCD swizzle, AGPRs"),
        Case("w2", 2, 512, 256, 4, 2, 16, (Forward((5, 8)),), golden="w2", why="two ranks, unequal tokens"),
        Case("w2_compact", 2, 512, 256, 4, 2, 16, (Forward((5, 8)),), compact=True, golden="w2_compact",
        why="two ranks, compact"),
        Case("w8", 8, 512, 256, 16, 3, 8, (Forward(_W8),), golden="w8", why="eight ranks"),
        _W8_CHANGING,
        replace(_W8_CHANGING, name="w8_cu4", cu=4, why="the same on 4 compute units (E2)"),
        Case("w8_compact", 8, 512, 256, 16, 3, 8, _CHANGING, compact=True,
        why="eight ranks, compact, another routing in every forward"),
        _DENSE,
        replace(_DENSE.compacted("dense_compact"), why="the same, compact"),
        _W8_DENSE,
        replace(_W8_DENSE.compacted("w8_dense_compact"), why="the same, compact"),
        replace(_DENSE, name="dense_noasync", arguments={"use_async_copy": False},
        why="the same without copies to LDS"),
        Case("cu4", 1, 1024, 256, 4, 2, 64, (Forward((40,)),), cu=4, combine=(4, 4),
        why="CU count not divisible by 8: XCD swizzle (E2)"),
        # Few tokens in many rows, for the reason given at pro_width below.
        Case("cu256", 1, 1024, 256, 8, 2, 4096, (Forward((40,)),), cu=256, combine=None,
             why="the grids of a whole GPU: stage-1 2 x 128, gemm2 8 x 256, upstream's own combine of 128 x 8"),
        Case("cu256_one_token", 1, 1024, 256, 8, 2, 1, (Forward((1,)),), cu=256,
             why="one token per rank on a whole GPU: gemm2's first look at a tile reads past the sorted ids"),
        Case("a4w4", 1, 512, 256, 4, 2, 16, (Forward((5,)), Forward((16,), seed=9)), cu=8, quant="a4w4",
        why="fp4 activations"),
        Case("a4w4_cu4", 1, 512, 256, 4, 2, 16, (Forward((5,)), Forward((16,), seed=9)), cu=4, quant="a4w4",
        why="fp4 activations, CU count not divisible by 8 (E2): right with the edit xcd_guard alone"),
        Case("nonfused", 1, 512, 256, 4, 2, 16, (Forward((5,)),),
             arguments={"enable_fused_stage1": False, "enable_fused_stage2": False},
             why="upstream's other path, which the recipe does not offer: bf16 atomics, other rounding of a2's scales"),
        Case("one_token", 2, 512, 256, 4, 2, 16, (Forward((1, 1)), Forward((16, 1), seed=3)),
        why="1 token and mtpr tokens"),
        Case("k8", 2, 512, 256, 16, 8, 8, (Forward((3, 8)),), why="K = 8"),
        Case("k1", 1, 512, 256, 4, 1, 16, (Forward((7,)),), why="K = 1"),
        Case("skew_rank", 4, 512, 256, 8, 2, 8, (Forward((8, 8, 8, 8), "one_rank"), Forward((2, 8, 1, 5),
        "empty_ranks", seed=5)),
             why="all tokens to one rank, then ranks that receive nothing"),
        Case("skew_expert", 2, 512, 256, 8, 2, 16, (Forward((16, 9), "one_expert"),), compact=True,
        why="all tokens to one expert"),
        Case("values", 1, 512, 256, 4, 2, 16,
             tuple(Forward((9,), activation=a, seed=k) for k, a in enumerate(("zero", "huge", "tiny", "mixed"))),
             why="zero, huge, tiny and mixed activations"),
        # So many tokens that the padded rows cover gemm2's first look at a tile on every CU (32 rows each).
        Case("pro_width", 1, 7168, 3072, 2, 2, 512, (Forward((4,)),), cu=24, combine=(4, 4), compact=True,
             why="DeepSeek-V4-Pro's widths, two experts: a full-size expert"),
        Case("flash_width", 1, 4096, 2048, 2, 2, 256, (Forward((4,)),), cu=16, combine=(4, 4), compact=True,
             why="DeepSeek-V4-Flash's widths, two experts"),
    )
}  # fmt: skip


def find(name: str, beside: Iterable[str] = ()) -> Case:
    """The case of that name; `beside`: what else the asker knows, for the error's list.

    Raises:
        Problem: case (exit 2).
    """
    if name not in CASES:
        raise Problem(
            "case",
            what=f"there is no case {name!r}",
            why=f"known cases: {', '.join((*CASES, *beside))}",
            fix="choose one of them, or add one to kernel_lane/capture/",
            exit_code=Exit.REFUSED,
        )
    return CASES[name]
