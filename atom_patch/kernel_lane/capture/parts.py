"""Kernels that are captured alone: the quantiser of activations and the sort of the non-fused path.

In a layer they see one routing and one kind of activation; alone they meet the inputs at which they could differ.
`parts_definition.py` says what each must compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lane.capture.cases import Case, find


@dataclass(frozen=True, slots=True)
class Quant:
    """`per_1x32_mx_quant` on [rows, columns] bf16; `form` is "fp8" or "fp4"."""

    name: str
    form: str
    rows: int = 32
    columns: int = 1024
    cu: int = 3
    why: str = ""


@dataclass(frozen=True, slots=True)
class Sort:
    """`moe_sorting_flydsl` for `tokens` tokens; `mask` says which experts are this rank's (None: all of them).

    Upstream chooses by tokens: one kernel up to max(16, 256 / max(topk, experts / 8)), two up to 2048, then four.
    `unit` rows make one block of an expert; `columns` bf16 per token is the output of the layer that the sort clears.
    """

    name: str
    tokens: int
    experts: int = 8
    topk: int = 2
    routing: str = "spread"
    mask: tuple[int, ...] | None = None
    unit: int = 32
    columns: int = 128
    seed: int = 700
    cu: int = 3
    why: str = ""


Part = Quant | Sort
_MASK = (0, 1, 1, 0, 1, 0, 0, 1)
PARTS: dict[str, Part] = {
    p.name: p
    for p in (
        Quant("quant_fp8", "fp8", why="zeros, the largest value and the next one, groups scaled by 2^-8 .. 2^7"),
        Quant("quant_fp4", "fp4", why="the same in fp4"),
        Sort("moe_sort", 24, why="one kernel"),
        Sort("moe_sort_two", 200, why="two kernels"),
        Sort("moe_sort_two_wide", 600, why="two kernels, more than one wave has tokens"),
        Sort("moe_sort_four", 2100, why="four kernels"),
        Sort("moe_sort_masked", 24, mask=_MASK, why="one kernel, half of the experts are another rank's"),
        Sort("moe_sort_two_masked", 600, mask=_MASK, why="two kernels, half of the experts are another rank's"),
        Sort("moe_sort_four_masked", 2100, mask=_MASK, why="four kernels, half of the experts are another rank's"),
        Sort("moe_sort_one_expert", 100, routing="one_expert", why="one kernel, an expert of all tokens"),
    )
}


def choose(name: str) -> Case | Part:
    """The layer or the part of that name.

    Raises:
        Problem: case (exit 2).
    """
    return PARTS[name] if name in PARTS else find(name, beside=PARTS)
