"""E2: which CU counts the XCD swizzle of stage-1 may run on, over the edit's own rule; no checkout is needed.

The order is stated here a second time, as arithmetic on (work-group, tile column). That this is what the kernels do is
shown where they are executed: the cases cu4 and a4w4_cu4, wrong without the edit and right with it (proven.md).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from megamoe.patch.rules import load_rules, transform
from real import checkout

XCDS, GROUP = 8, 4
GUARD = "gx_xcd_ok = (cu_g % gx_g == 0) and (8 % gx_g == 0 or gx_g % 8 == 0)"
FILE = "kernels/mega_moe/mega_moe.py"


def tiles_reached(columns: int, rows: int) -> set[tuple[int, int]]:
    """The (row, column) places that `rows` x `columns` work-groups take after the remap."""
    count, out = columns * rows, set()
    for linear in range(count):
        moved = linear % XCDS * (count // XCDS) + linear // XCDS
        first = moved // (GROUP * columns) * GROUP
        height = min(rows - first, GROUP)
        inside = moved % (GROUP * columns)
        out.add((first + inside % height, inside // height))
    return out


def loses_tiles(cu_count: int, columns: int) -> bool:
    rows = cu_count // columns
    return tiles_reached(columns, rows) != {(r, c) for r in range(rows) for c in range(columns)}


def guard(*, edited: bool) -> Callable[[int, int], bool]:
    """Upstream's line, or what the rule of atom_patch/edits makes of it, as a function of (CU count, columns)."""
    source = f"def keeps(cu_g, gx_g):\n    {GUARD}\n    return gx_xcd_ok\n".encode()
    if edited:
        rules = [r for r in load_rules("flydsl") if r.edit == "xcd_guard"]
        source, counts = transform(FILE, source, rules, undo=False)
        assert [n for _, n in counts] == [1]
    names: dict[str, Callable[[int, int], bool]] = {}
    exec(source, names)
    return names["keeps"]


def columns_of(quant: str, inter: int, tile: int) -> int:
    """Tile columns of stage-1: gate and up interleaved (a8w4) or side by side in one tile (a4w4)."""
    return (2 * inter + tile - 1) // tile if quant == "a8w4" else (2 * inter + 2 * tile - 1) // tile // 2


WIDTHS = [(quant, inter, tile) for quant in ("a8w4", "a4w4") for inter in (256, 512, 1024, 2048, 3072)
          for tile in (128, 256)]  # fmt: skip


@pytest.mark.parametrize(("quant", "inter", "tile"), WIDTHS)
def test_with_the_edit_no_cu_count_loses_a_tile(quant: str, inter: int, tile: int) -> None:
    keeps, columns = guard(edited=True), columns_of(quant, inter, tile)
    kept = [cu for cu in range(1, 305) if keeps(cu, columns)]
    assert [cu for cu in kept if loses_tiles(cu, columns)] == []
    assert all(cu % XCDS == 0 for cu in kept)


@pytest.mark.parametrize("quant", ["a8w4", "a4w4"])
@pytest.mark.parametrize("cu_count", [4, 36, 76, 228])
def test_without_the_edit_tiles_are_lost_where_8_does_not_divide_the_cus(quant: str, cu_count: int) -> None:
    columns = columns_of(quant, 256, 256)
    assert guard(edited=False)(cu_count, columns)
    assert loses_tiles(cu_count, columns)
    assert not guard(edited=True)(cu_count, columns)


@pytest.mark.parametrize("cu_count", [8, 32, 64, 128, 256, 304])
def test_the_edit_keeps_the_swizzle_where_it_was_right(cu_count: int) -> None:
    for columns in (1, 2, 4, 8):
        assert guard(edited=False)(cu_count, columns) == guard(edited=True)(cu_count, columns)


@pytest.mark.checkout
def test_the_pinned_checkout_has_the_line_that_is_stated_here() -> None:
    text = (checkout("MEGAMOE_FLYDSL_DIR") / FILE).read_text(encoding="utf-8")
    assert text.count(GUARD) == 1
