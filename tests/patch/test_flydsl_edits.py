"""The edits of FlyDSL: names, choices and, on the real tree (MEGAMOE_FLYDSL_DIR), every combination there and back."""

from __future__ import annotations

import itertools
import shutil
import tomllib
from pathlib import Path

import pytest
from megamoe.patch import command
from megamoe.patch.rules import load_rules, load_upstream, transform
from megamoe.resources import resource
from megamoe_atom import kernel_edits
from megamoe_atom.kernel import blob_id, pinned_files
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.settings import parse, parse_kernel_edits
from trees import checkout, contents

EVERY = (*kernel_edits.EDITS, kernel_edits.ASYNC_COPY_OFF)

# Made-up files, nested as upstream's, that hold each site as often as the rules say, next to look-alikes.
DISPATCH = """def emit_dispatch_prologue(x):
    if fixed_slot:
        fx.barrier()
        e0_i32 = arith.constant(0)
        if gwid == 0:
            sv = mori_shmem.int32_wait_until_greater_than(rn_src, arith.constant(0))
            if small:
                le_ok = arith.cmpi(CmpIPredicate.ult, lane, arith.constant(fz_epr))
                run_lane = arith.select(
                    le_ok, buffer_ops.buffer_load(r_run, lane, vec_width=1, dtype=T.i32), arith.constant(0)
                )
                if lane == 0:
                    buffer_ops.buffer_store(nvv, r_nv, arith.constant(0))
                    buffer_ops.buffer_store(nvv, r_nv, arith.constant(1))
                if le_ok:
                    buffer_ops.buffer_store(run_lane, r_cnt, lane)  # copy only; reset deferred past meta
            else:
                if lane == 0:
                    other()
                buffer_ops.buffer_store(nvv, r_nv, arith.constant(0))
                buffer_ops.buffer_store(nvv, r_nv, arith.constant(1))
            if small:
                epk.fence_agent_release()
                le_okr = arith.cmpi(CmpIPredicate.ult, lane, arith.constant(fz_epr))
                if le_okr:
                    buffer_ops.buffer_store(arith.constant(0), r_run, lane)
                epk.fence_system_release()
        mori_shmem.int32_wait_until_greater_than(a_meta, e0_i32)
        fx.barrier()
    mori_shmem.int32_wait_until_greater_than(a_meta, e0)
    mori_shmem.int32_wait_until_greater_than(a_meta2, e0m2)
"""
EPILOGUE = """class Other:
    def __init__(self, f32):
        self.f32 = f32


class Activation:
    def __init__(
        self,
        *,
        f32,
    ):
        self.f32 = f32

    def _silu_mul_vec4(self, gate_v4, up_v4):
        for ei in range_constexpr(4):
            g, u = both(ei)
            result_elems.append(self._silu_elem(g) * u)
        return result_elems
"""
GEMM1 = """def compile_fused_moe_gemm1(
    *,
    compact_dispatch: bool = False,
):
    module_name = get_module_name()
    vmcnt_before_barrier = tile_m // 32 // fp4_ratio + tile_n // 32 * gui_ratio
    other = Reduction(
        f32=f32,
    )
    epi_act = Activation(
                    f32=f32,
                )
"""
MEGA = """def resolve_stage1_config(use_async_copy=True):
    gx_xcd_ok = (cu_g % gx_g == 0) and (8 % gx_g == 0 or gx_g % 8 == 0)
    return dict(
        use_async_copy=bool(use_async_copy),
    )


class MegaMoE:
    def __init__(
        self,
        *,
        gate_mode=None,
    ):
        self.quant = quant
        self._s1cfg = resolve_stage1_config(
            use_async_copy=bool(use_async_copy),
        )
        self._s1_mega = compile_fused_moe_gemm1(
                    compact_dispatch=self._s1_compact,
                )
        self._nf_gemm1 = compile_mixed_moe_gemm1(
            act="silu",
        )
"""
MADE_UP = {
    f"kernels/mega_moe/{name}.py": text
    for name, text in (("dispatch", DISPATCH), ("epilogue", EPILOGUE), ("gemm1", GEMM1), ("mega_moe", MEGA))
}


def choices(names: frozenset[str]) -> list[frozenset[str]]:
    return [frozenset(c) for n in range(len(names) + 1) for c in itertools.combinations(sorted(names), n)]


def test_each_edit_has_rules_and_each_rule_belongs_to_an_edit() -> None:
    assert {r.edit for r in load_rules("flydsl")} == set(EVERY)


@pytest.mark.parametrize("path", MADE_UP)
def test_every_choice_of_edits_matches_and_is_undone_on_files_made_up_for_it(path: str) -> None:
    source = MADE_UP[path].encode()
    compile(source, path, "exec")
    for choice in choices(load_upstream("flydsl").named(path).edits):
        rules = [r for r in load_rules("flydsl") if r.edit in choice]
        edited, counts = transform(path, source, rules, undo=False)
        assert [(r.name, n) for r, n in counts] == [(r.name, r.matches) for r, _ in counts]
        compile(edited, path, "exec")
        assert (edited == source) == (not choice)
        assert transform(path, edited, rules, undo=True)[0] == source


def test_the_edits_of_a_file_leave_its_look_alikes_alone() -> None:
    def edited(name: str) -> str:
        path = f"kernels/mega_moe/{name}.py"
        return transform(path, MADE_UP[path].encode(), load_rules("flydsl"), undo=False)[0].decode()

    assert "greater_than(rn_src, arith.constant(0))" in edited("dispatch")
    assert "if lane == 0:\n                    other()" in edited("dispatch")
    assert edited("dispatch").count("rocdl.s_waitcnt(0)\n        fx.barrier()") == 1
    assert "Reduction(\n        f32=f32,\n    )" in edited("gemm1")
    assert "self.swiglu_limit" not in edited("epilogue").split("class Activation")[0]
    assert edited("mega_moe").count("use_async_copy=bool(use_async_copy)") == 1


def test_every_choice_of_edits_of_a_file_has_an_id_of_its_own() -> None:
    for pinned in load_upstream("flydsl").files:
        touching = frozenset(r.edit for r in load_rules("flydsl") if r.file == pinned.path)
        assert pinned.edits == touching
        assert set(pinned.images) == set(choices(touching))
        assert len(set(pinned.images.values())) == len(pinned.images)


def test_every_edited_file_is_a_kernel_file_of_the_adapter() -> None:
    files = pinned_files()[1]
    assert {r.file for r in load_rules("flydsl")} <= set(files)
    for pinned in load_upstream("flydsl").files:
        assert files[pinned.path][0] == pinned.before


def test_the_edits_are_made_for_the_flydsl_of_the_image() -> None:
    pins = tomllib.loads(resource("docker/pins.toml").read_text(encoding="utf-8"))
    assert load_upstream("flydsl").commit == pins["git"]["flydsl"]["commit"]


@pytest.mark.parametrize("edit", EVERY)
def test_each_edit_says_in_its_header_what_why_and_until_when(edit: str) -> None:
    text = resource(f"atom_patch/edits/flydsl/{edit}.yml").read_text(encoding="utf-8")
    for field in ("Description", "Why-Edit", "Forwarded", "Last-Update", "Drop-When"):
        assert f"# {field}: " in text


@pytest.mark.parametrize(
    ("without", "async_copy", "edits"),
    [
        pytest.param((), True, set(kernel_edits.EDITS), id="all six by default"),
        pytest.param((), False, set(EVERY), id="asynchronous copy off as well"),
        pytest.param(("xcd_guard",), True, set(kernel_edits.EDITS) - {"xcd_guard"}, id="one left out"),
        pytest.param(("tile_wait",), True, set(EVERY) - {"tile_wait"}, id="without tile_wait the copy is off"),
        pytest.param(kernel_edits.EDITS, True, {"async_copy_off"}, id="none but the copy"),
    ],
)
def test_what_is_left_out_decides_what_is_wanted(without: tuple[str, ...], async_copy: bool, edits: set[str]) -> None:
    assert kernel_edits.wanted(without, async_copy=async_copy) == edits


def test_the_settings_choose_the_edits() -> None:
    assert parse({}).kernel_edits == set(kernel_edits.EDITS)
    assert parse({"MEGAMOE_WITHOUT_EDITS": "tile_wait, xcd_guard"}).kernel_edits == set(EVERY) - {
        "tile_wait",
        "xcd_guard",
    }
    assert kernel_edits.ASYNC_COPY_OFF in parse({"MEGAMOE_ASYNC_COPY": "off"}).kernel_edits
    assert parse_kernel_edits({"MEGAMOE_WITHOUT_EDITS": " "}) == (frozenset(), True)


def test_a_name_that_is_no_edit_is_refused_with_the_names_that_are() -> None:
    with pytest.raises(Problem, match="tile_wiat") as caught:
        parse({"MEGAMOE_WITHOUT_EDITS": "tile_wiat"})
    assert caught.value.code == "kernel_edit"
    assert caught.value.exit_code is Exit.REFUSED
    assert "tile_wait" in caught.value.reasons[0].fix


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"atom": Path("a"), "flydsl": Path("b")},
        {"atom": Path("a"), "without": ["tile_wait"]},
        {"atom": Path("a"), "async_copy": False},
    ],
    ids=["no tree", "two trees", "edits of ATOM chosen", "copies of ATOM chosen"],
)
def test_a_call_names_one_tree_and_chooses_edits_of_flydsl_only(options: dict[str, object]) -> None:
    with pytest.raises(Problem) as caught:
        command.job(**options)  # type: ignore[arg-type]
    assert caught.value.code == "which_tree"


def test_an_edit_counts_as_present_only_when_every_file_carries_it() -> None:
    pinned = kernel_edits.pinned().files
    whole = {p: i[frozenset(EVERY) & frozenset().union(*i)] for p, i in pinned.items()}
    assert kernel_edits.present(whole) == set(EVERY)
    half = whole | {"kernels/mega_moe/epilogue.py": pinned["kernels/mega_moe/epilogue.py"][frozenset()]}
    assert kernel_edits.present(half) == set(EVERY) - {"swiglu_limit"}
    assert kernel_edits.present({p: i[frozenset()] for p, i in pinned.items()}) == set()


# ---- on the real tree


@pytest.fixture
def flydsl(tmp_path: Path) -> Path:
    root = checkout("MEGAMOE_FLYDSL_DIR")
    for name in pinned_files()[1]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, tmp_path / name)
    return tmp_path


@pytest.mark.checkout
@pytest.mark.parametrize("path", [f.path for f in load_upstream("flydsl").files])
def test_every_choice_matches_compiles_gives_its_id_and_is_undone_byte_for_byte(path: str) -> None:
    upstream = checkout("MEGAMOE_FLYDSL_DIR").joinpath(path).read_bytes()
    pinned = load_upstream("flydsl").named(path)
    assert blob_id(upstream) == pinned.before
    for choice in choices(pinned.edits):
        rules = [r for r in load_rules("flydsl") if r.edit in choice]
        edited, counts = transform(path, upstream, rules, undo=False)
        assert [(r.name, n) for r, n in counts] == [(r.name, r.matches) for r, _ in counts]
        assert blob_id(edited) == pinned.images[choice]
        compile(edited, path, "exec")
        assert transform(path, edited, rules, undo=True)[0] == upstream


@pytest.mark.checkout
def test_apply_moves_between_choices_and_revert_gives_the_bytes_back(flydsl: Path) -> None:
    before = contents(flydsl)
    for without in ([], ["tile_wait"], ["swiglu_limit", "publish_order"], list(kernel_edits.EDITS), []):
        work = command.job(flydsl=flydsl, without=without)
        command.move(work, undo=False)
        assert command.move(work, undo=False).data["changed"] == []
        assert command.check(work, allow_drift=False).status == "pass"
        found = {p: blob_id(c) for p, c in contents(flydsl).items()}
        assert kernel_edits.present(found) == work.selection
    command.move(command.job(flydsl=flydsl), undo=True)
    assert contents(flydsl) == before


@pytest.mark.checkout
def test_check_names_what_is_missing_and_what_is_too_much(flydsl: Path) -> None:
    command.move(command.job(flydsl=flydsl, without=["tile_wait"]), undo=False)
    outcome = command.check(command.job(flydsl=flydsl), allow_drift=False)
    assert [(f.code, f.file) for f in outcome.findings] == [
        ("not_applied", "kernels/mega_moe/gemm1.py"),
        ("not_wanted", "kernels/mega_moe/mega_moe.py"),
    ]
    assert f"--flydsl {flydsl}" in outcome.findings[0].fix
    back = command.check(command.job(flydsl=flydsl, without=["xcd_guard"]), allow_drift=False)
    assert all("--without xcd_guard" in f.fix for f in back.findings)


@pytest.mark.checkout
def test_a_changed_kernel_file_that_no_edit_touches_is_found(flydsl: Path) -> None:
    command.move(command.job(flydsl=flydsl), undo=False)
    path = flydsl / "kernels/mega_moe/kloop.py"
    path.write_bytes(path.read_bytes() + b"\n")
    outcome = command.check(command.job(flydsl=flydsl), allow_drift=False)
    assert [f.code for f in outcome.findings] == ["flydsl_commit"]
    assert "kloop.py" in outcome.findings[0].what


@pytest.mark.checkout
def test_an_edited_file_with_local_changes_is_refused_and_drift_says_what_it_would_need(flydsl: Path) -> None:
    path = flydsl / "kernels/mega_moe/dispatch.py"
    path.write_bytes(path.read_bytes().replace(b"le_okr", b"le_reset"))
    before = contents(flydsl)
    with pytest.raises(Problem) as caught:
        command.move(command.job(flydsl=flydsl), undo=False)
    assert caught.value.code == "pre_image"
    assert contents(flydsl) == before
    found = command.check(command.job(flydsl=flydsl), allow_drift=True).findings
    sites = [f.what for f in found if f.code == "edit_site"]
    assert len(sites) == 2
    assert all("publish-reset" in what for what in sites)


@pytest.mark.checkout
def test_the_whole_set_stays_small(flydsl: Path) -> None:
    text = command.diff(command.job(flydsl=flydsl), allow_drift=False).text
    body = [line for line in text.splitlines() if not line.startswith(("+++", "---"))]
    counted = {sign: sum(line.startswith(sign) for line in body) for sign in "+-"}
    assert counted == {"+": 24, "-": 18}
