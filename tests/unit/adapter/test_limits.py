"""MegaMoE's limits: bytes to the byte, 32-bit bounds on both sides, and no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megamoe_atom import limits
from megamoe_atom.limits import GIB, R1, V4_FLASH, V4_PRO, MoeGeometry
from megamoe_atom.problem import Problem

R1_A4W4 = MoeGeometry(7168, 2048, 256, 8, quant="a4w4")

# Source: the real FlyDSL constructor on meta tensors with a heap that logged every allocation.
V4_PRO_TABLE = [
    (128, False, 32, 389_984_000, 0.036),
    (256, False, 64, 778_070_784, 0.072),
    (512, False, 64, 1_554_244_352, 0.144),
    (1024, False, 64, 3_106_591_488, 0.288),
    (2048, True, 64, 1_137_249_280, 0.510),
    (4096, True, 64, 2_251_738_112, 1.020),
    (8192, True, 64, 4_480_715_776, 2.040),
    (16384, True, 64, 8_938_671_104, 4.080),
]
V4_FLASH_TABLE = [
    (128, False, 64, 0.143, 0.022),
    (256, False, 32, 0.285, 0.044),
    (512, False, 64, 0.570, 0.087),
    (1024, False, 64, 1.138, 0.174),
    (2048, False, 64, 2.276, 0.348),
    (4096, True, 64, 1.196, 0.639),
    (8192, True, 64, 2.384, 1.278),
    (16384, True, 64, 4.761, 2.557),
]


@pytest.mark.parametrize(("mtpr", "compact", "tile", "heap", "hbm_gib"), V4_PRO_TABLE)
def test_v4_pro_memory_equals_the_logged_constructor(
    mtpr: int, compact: bool, tile: int, heap: int, hbm_gib: float
) -> None:
    g = V4_PRO.at(mtpr)
    assert (limits.is_compact(g), limits.stage1_tile(g)) == (compact, tile)
    assert limits.megamoe_heap_bytes(g) == heap
    assert round(limits.megamoe_hbm_bytes(g) / GIB, 3) == hbm_gib


@pytest.mark.parametrize(("mtpr", "compact", "tile", "heap_gib", "hbm_gib"), V4_FLASH_TABLE)
def test_v4_flash_memory_equals_the_logged_constructor(
    mtpr: int, compact: bool, tile: int, heap_gib: float, hbm_gib: float
) -> None:
    g = V4_FLASH.at(mtpr)
    assert (limits.is_compact(g), limits.stage1_tile(g)) == (compact, tile)
    assert round(limits.megamoe_heap_bytes(g) / GIB, 3) == heap_gib
    assert round(limits.megamoe_hbm_bytes(g) / GIB, 3) == hbm_gib


@pytest.mark.parametrize(
    ("g", "heap_gib", "hbm_gib"), [(R1, 5.071, 1.913), (R1_A4W4.at(16384), 6.184, 2.826)], ids=["a8w4", "a4w4"]
)
def test_r1_memory_equals_the_logged_constructor(g: MoeGeometry, heap_gib: float, hbm_gib: float) -> None:
    assert round(limits.megamoe_heap_bytes(g) / GIB, 3) == heap_gib
    assert round(limits.megamoe_hbm_bytes(g) / GIB, 3) == hbm_gib


def test_v4_pro_at_8192_uses_exactly_the_logged_device_memory_and_weights() -> None:
    assert limits.megamoe_hbm_bytes(V4_PRO) == 2_190_838_030
    assert limits.weight_bytes_per_layer(V4_PRO) == 1_684_537_344


@pytest.mark.parametrize(
    ("tokens", "pro", "flash"), [(1024, 0.239, 0.137), (8192, 1.911, 1.096), (16384, 3.822, 2.193)]
)
def test_atoms_own_mori_operator_takes_this_much_heap(tokens: int, pro: float, flash: float) -> None:
    assert round(limits.mori_op_bytes(V4_PRO, tokens) / GIB, 3) == pro
    assert round(limits.mori_op_bytes(V4_FLASH, tokens) / GIB, 3) == flash


@pytest.mark.parametrize(("ops", "gib"), [(0, 5), (1, 7), (3, 10)], ids=["this adapter", "with mori's op", "with TBO"])
def test_the_heap_to_render_is_rounded_up_to_whole_gibibytes(ops: int, gib: int) -> None:
    assert limits.heap_to_render(V4_PRO, atom_mori_ops=ops) == gib * GIB


@pytest.mark.parametrize(
    ("g", "largest"),
    [
        (V4_PRO, 8192),
        (V4_FLASH, 16384),
        (R1, 8192),
        (R1_A4W4, 16384),
        (MoeGeometry(7168, 3072, 384, 6, quant="a4w4"), 16384),
        (MoeGeometry(7168, 3072, 384, 6, ep_size=4), 16384),
        (MoeGeometry(7168, 3072, 384, 6, ep_size=2), 0),
    ],
    ids=["V4-Pro", "V4-Flash", "R1", "R1 a4w4", "V4-Pro a4w4", "V4-Pro W=4", "V4-Pro W=2 (w13 too large)"],
)
def test_the_largest_legal_mtpr_is_known(g: MoeGeometry, largest: int) -> None:
    assert limits.largest_legal(g) == largest
    assert (
        limits.largest_legal_mtpr(
            hidden=g.hidden, inter=g.inter, experts=g.experts, topk=g.topk, world=g.ep_size, quant=g.quant
        )
        == largest
    )


def codes(g: MoeGeometry) -> list[str]:
    return [r.code for r in limits.bound_reasons(g)]


def test_v4_pro_at_16384_breaks_the_a2_and_the_buffer_bound_and_the_fix_says_8192() -> None:
    assert codes(V4_PRO) == []
    assert codes(V4_PRO.at(16384)) == ["bound_L1", "bound_L2"]
    assert "8192" in limits.bound_reasons(V4_PRO.at(16384))[0].fix


# Per bound a geometry that is just below it and its neighbour that breaks it.
SIDES = {
    "L1": (R1, R1.at(16384)),  # 16384 is exactly 2^31
    "L2": (V4_FLASH.at(16384), V4_FLASH.at(32768)),
    "L3": (V4_PRO.at(8192), V4_PRO.at(16384 * 2)),
    "L4": (MoeGeometry(256, 256, 8, 1, 8, 2**20), MoeGeometry(256, 256, 8, 1, 8, 2**21)),
    "L5": (MoeGeometry(256, 256, 128, 64, 8, 16), MoeGeometry(256, 256, 128, 65, 8, 16)),
    "L6": (V4_PRO.at(2**15), V4_PRO.at(2**16)),
    "L7": (MoeGeometry(256, 256, 128, 64, 8, 2**20), MoeGeometry(256, 256, 128, 64, 8, 2**21)),
    "L8": (MoeGeometry(8192, 256, 8, 8, 8, 2**17), MoeGeometry(8192, 256, 8, 8, 8, 2**18)),
    "L9": (MoeGeometry(7168, 3072, 384, 6, 4, 1024), MoeGeometry(7168, 3072, 384, 6, 2, 1024)),
}


@pytest.mark.parametrize("name", SIDES)
def test_each_bound_holds_below_and_is_named_above(name: str) -> None:
    below, above = SIDES[name]
    assert f"bound_{name}" not in codes(below)
    assert f"bound_{name}" in codes(above)


@given(st.integers(0, 14), st.sampled_from([V4_PRO, V4_FLASH, R1, R1_A4W4]))
def test_the_fixed_slot_row_bound_can_never_break_because_large_buffers_are_compact(power: int, g: MoeGeometry) -> None:
    assert "bound_L10" not in codes(g.at(2**power))


@given(st.integers(0, 13), st.sampled_from([V4_PRO, V4_FLASH]))
def test_a_launch_fits_the_heap_that_is_rendered_for_it_and_not_one_byte_less_than_its_need(
    power: int, g: MoeGeometry
) -> None:
    at = g.at(2**power)
    assert limits.heap_reasons(at, limits.heap_to_render(at)) == []
    need = limits.megamoe_heap_bytes(at) + limits.MORI_SYNC_BYTES
    assert limits.heap_reasons(at, need) == []
    assert [r.code for r in limits.heap_reasons(at, need - 1)] == ["heap_too_small"]


def test_a_heap_that_another_instance_shares_must_hold_both_and_the_fix_says_how_much() -> None:
    both = 2 * limits.megamoe_heap_bytes(V4_PRO) + limits.MORI_SYNC_BYTES
    taken = limits.megamoe_heap_bytes(V4_PRO)
    assert limits.heap_reasons(V4_PRO, both, taken_bytes=taken) == []
    (reason,) = limits.heap_reasons(V4_PRO, both - 1, taken_bytes=taken)
    assert reason.fix == "set MORI_SHMEM_HEAP_SIZE=9G"


@pytest.mark.parametrize(
    ("mtpr", "legal"), [(-8, False), (0, False), (1, True), (3, False), (8191, False), (8192, True)]
)
def test_mtpr_is_a_positive_power_of_two(mtpr: int, legal: bool) -> None:
    assert [r.code for r in limits.mtpr_reasons(mtpr)] == ([] if legal else ["mtpr"])


def test_the_compact_layout_starts_at_2048_for_v4_pro_and_4096_for_v4_flash() -> None:
    assert limits.smallest_compact(V4_PRO) == 2048
    assert limits.smallest_compact(V4_FLASH) == 4096


def test_more_than_64_local_experts_are_compact_at_any_size() -> None:
    assert not limits.is_compact(MoeGeometry(256, 256, 512, 2, 8, 1))
    assert limits.is_compact(MoeGeometry(256, 256, 520, 2, 8, 1))


def test_the_launch_epoch_lasts_about_eight_days_at_50_forwards_of_61_layers() -> None:
    assert round(limits.epoch_hours(61, 50) / 24, 1) == 8.1
    with pytest.raises(Problem, match="epoch_rate"):
        limits.epoch_hours(61, 0)


@pytest.mark.parametrize("bad", [{"experts": 385}, {"quant": "a16w4"}, {"hidden": 0}, {"mtpr": -1}])
def test_a_geometry_that_cannot_exist_is_refused(bad: dict[str, object]) -> None:
    good: dict[str, object] = {"hidden": 7168, "inter": 3072, "experts": 384, "topk": 6}
    with pytest.raises(Problem, match=next(iter(bad))):
        MoeGeometry(**good | bad)  # type: ignore[arg-type]


def test_limits_settings_support_and_status_import_no_torch() -> None:
    code = (
        "import sys, megamoe_atom.limits, megamoe_atom.settings, megamoe_atom.support, megamoe_atom.status; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
