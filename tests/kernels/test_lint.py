"""The kernel linter on code objects of ours: each rule on the fault it is for and on its healthy twin."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from code_object import WORDS, assemble, code_object
from kernel_lane.bundle import Writer
from megamoe.envelope import Outcome
from megamoe.kernels import lint
from megamoe.kernels.lint_fit import Need, groups_per_cu
from megamoe.kernels.lint_flow import QUEUE, Queue
from megamoe_atom.problem import Exit, Problem

DMA = "buffer_load_dwordx4 v1, s[4:7], 0 offen lds"
LOAD = "buffer_load_dwordx4 v[4:7], v1, s[4:7], 0 offen"
FLAG = "buffer_store_dword v2, off, s[12:15], 0"
DATA = "buffer_store_dword v3, v4, s[8:11], 0 offen"
SPIN = """
spin:
    global_load_dword v2, v[10:11], off sc0 sc1
    s_waitcnt vmcnt(0)
    s_cbranch_execnz spin
"""


def linted(text: str, *, cu_count: int = 256, groups: int | None = None, **options: object) -> Outcome:
    name = str(options.get("name", "kernel"))
    data = code_object(text + "\n s_endpgm", **options)  # type: ignore[arg-type]
    return lint.judge([lint.Image("k.hsaco", data, {name: groups} if groups else {})], cu_count=cu_count)


def codes(outcome: Outcome) -> list[str]:
    return [f.code for f in outcome.findings]


# ---- L1: the tile and its barrier


@pytest.mark.parametrize(
    ("order", "wait", "left"),
    [
        pytest.param((DMA, LOAD), "s_waitcnt vmcnt(1)", 0, id="the load is the youngest, so the tile has landed"),
        pytest.param((LOAD, DMA), "s_waitcnt vmcnt(1)", 1, id="the tile is the youngest and may be under way"),
        pytest.param((DMA, DMA, LOAD), "s_waitcnt vmcnt(20)", 2, id="a count beyond everything waits for nothing"),
        pytest.param((LOAD, DMA), "s_waitcnt vmcnt(0)", 0, id="a full wait"),
        pytest.param((DMA,), "s_waitcnt lgkmcnt(0)", 1, id="a wait for LDS is none for its DMA"),
    ],
)
def test_lds_dma_under_way_at_a_barrier_is_counted(order: tuple[str, ...], wait: str, left: int) -> None:
    outcome = linted("\n".join((*order, wait, "s_barrier")))
    assert codes(outcome) == (["tile_not_landed"] if left else [])
    assert outcome.data["kernels"][0]["lds_dma_left"] == left
    if left:
        assert "0x10" in outcome.findings[0].what
        assert "tile_wait" in outcome.findings[0].fix


def test_a_tile_that_is_late_only_on_the_way_round_a_loop_is_seen() -> None:
    body = f"""
    loop:
        s_waitcnt vmcnt(1)
        s_barrier
        {LOAD}
        {DMA}
        s_cbranch_scc1 loop
        s_waitcnt vmcnt(0)
        s_barrier
    """
    outcome = linted(body)
    assert codes(outcome) == ["tile_not_landed"]
    assert "1 of 2 barriers" in outcome.findings[0].what
    assert linted(body.replace(f"{LOAD}\n        {DMA}", f"{DMA}\n        {LOAD}")).status == "pass"


def test_a_tile_that_is_late_on_one_of_two_branches_is_seen() -> None:
    body = f"""
        {DMA}
        s_cbranch_scc1 other
        {LOAD}
        s_branch join
    other:
        v_mov_b32_e32 v2, 0
    join:
        s_waitcnt vmcnt(1)
        s_barrier
    """
    assert codes(linted(body)) == ["tile_not_landed"]
    assert linted(body.replace("v_mov_b32_e32 v2, 0", LOAD)).status == "pass"


def test_code_behind_a_jump_that_nothing_reaches_does_not_count() -> None:
    assert linted(f"s_branch end\n {DMA}\n s_barrier\n end:").status == "pass"


def test_the_queue_forgets_nothing_within_what_the_counter_can_hold() -> None:
    queue = Queue().push("lds_dma")
    for _ in range(QUEUE - 1):
        queue = queue.push("load")
    assert queue.lds_dma.bit_count() == 1
    assert queue.wait(QUEUE - 1).lds_dma == 0
    assert queue.push("load").lds_dma == 0, "the 64th operation stalls until the first has completed"


# ---- E9: the flag and its data

ARMS = """
    s_and_saveexec_b64 s[4:5], vcc
    s_xor_b64 s[8:9], exec, s[4:5]
    s_cbranch_execz second
    {first}
second:
    s_andn2_saveexec_b64 s[8:9], s[8:9]
    s_cbranch_execz done
    {second}
done:
    s_or_b64 exec, exec, s[8:9]
"""
PUBLISH = f"buffer_wbl2 sc1\n s_waitcnt vmcnt(0)\n {FLAG}"


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        pytest.param(PUBLISH, f"{DATA}\n {PUBLISH}", True, id="the second arm still has data to store"),
        pytest.param(f"{DATA}\n {PUBLISH}", PUBLISH, False, id="the data goes first"),
        pytest.param(f"{DATA}\n {PUBLISH}", f"{DATA}\n {PUBLISH}", True, id="both arms have data of their own"),
        pytest.param("v_mov_b32_e32 v2, 0", f"{DATA}\n {PUBLISH}", False, id="one arm publishes"),
        pytest.param(FLAG, f"{DATA}\n {PUBLISH}", False, id="a store without a release is no publication"),
    ],
)
def test_a_flag_that_one_arm_stores_before_the_others_data_is_seen(first: str, second: str, found: bool) -> None:
    outcome = linted(ARMS.format(first=first, second=second))
    assert codes(outcome) == (["flag_before_data"] if found else [])
    if found:
        assert "publish_order" in outcome.findings[0].fix


# ---- L2: the payload and its arrival


@pytest.mark.parametrize(
    ("before", "found"),
    [
        pytest.param("v_mov_b32_e32 v2, 0", True, id="nothing waits"),
        pytest.param("s_waitcnt vmcnt(0)", False, id="every wave waits"),
        pytest.param("s_waitcnt vmcnt(1)", True, id="the youngest store may be under way"),
    ],
)
def test_payload_under_way_at_an_arrival_is_seen(before: str, found: bool) -> None:
    arrival = "buffer_wbl2 sc1\n s_waitcnt vmcnt(0)\n global_atomic_add v[6:7], v2, off sc1"
    outcome = linted(f"{DATA}\n {before}\n s_barrier\n {arrival}")
    assert codes(outcome) == (["payload_not_waited"] if found else [])


def test_a_barrier_without_an_arrival_behind_it_may_be_crossed_with_stores_under_way() -> None:
    assert linted(f"{DATA}\n s_barrier\n {LOAD}").status == "pass"


# ---- what the object says of itself


def test_an_undefined_symbol_is_named() -> None:
    outcome = linted("v_mov_b32_e32 v2, 0", undefined="__ockl_get_num_groups")
    assert codes(outcome) == ["undefined_symbol"]
    assert "__ockl_get_num_groups" in outcome.findings[0].what


@pytest.mark.parametrize("options", [{"scratch": 16}, {"extra": {".uses_dynamic_stack": True}}], ids=["bytes", "stack"])
def test_scratch_is_refused(options: dict[str, object]) -> None:
    assert codes(linted("v_mov_b32_e32 v2, 0", **options)) == ["scratch"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        pytest.param({"machine": 0x4C}, "wrong_arch", id="gfx942"),
        pytest.param({"abi_version": 2}, "code_object_version", id="code object version 4"),
        pytest.param({"extra": {".new_key": 1}}, "metadata_unknown", id="metadata that nobody knows"),
    ],
)
def test_an_object_of_another_kind_is_a_finding_with_its_reason(options: dict[str, object], code: str) -> None:
    outcome = linted("v_mov_b32_e32 v2, 0", **options)
    assert codes(outcome) == [code]
    assert outcome.exit_code is Exit.CHECK_FAILED
    assert outcome.findings[0].file == "k.hsaco"


def test_an_object_that_ends_too_early_is_a_finding() -> None:
    data = code_object("s_endpgm")
    for size in (3, 40, 64, 200, len(data) // 2, len(data) - 1):
        outcome = lint.judge([lint.Image("k.hsaco", data[:size])], cu_count=256)
        assert outcome.status == "fail"
        assert codes(outcome)[0] in ("not_elf", "elf_truncated", "metadata")


def test_an_unknown_instruction_is_a_finding_with_its_address() -> None:
    data = code_object("v_mov_b32_e32 v2, 0\n s_endpgm").replace(assemble("v_mov_b32_e32 v2, 0"), b"\xff\xff\xff\xff")
    outcome = lint.judge([lint.Image("k.hsaco", data)], cu_count=256)
    assert codes(outcome) == ["unknown_instruction"]
    assert "0x1000" in outcome.findings[0].what


# ---- co-residency


@pytest.mark.parametrize(
    ("need", "groups"),
    [
        pytest.param(Need(256, 457, 100_352), 1, id="stage-1 of V4-Pro at 8192 tokens"),
        pytest.param(Need(256, 512, 0), 1, id="all registers"),
        pytest.param(Need(256, 256, 0), 2, id="half of the registers"),
        pytest.param(Need(256, 257, 0), 1, id="one register more, rounded up to a block"),
        pytest.param(Need(256, 16, 163_840), 1, id="all of the LDS"),
        pytest.param(Need(256, 16, 81_920), 2, id="half of the LDS"),
        pytest.param(Need(256, 16, 81_921), 1, id="a byte more"),
        pytest.param(Need(256, 16, 163_841), 0, id="more LDS than there is"),
        pytest.param(Need(1024, 256, 0), 0, id="sixteen waves of half the registers"),
        pytest.param(Need(1024, 128, 0), 1, id="sixteen waves of a quarter"),
        pytest.param(Need(64, 16, 0), 16, id="as many as there are barriers"),
    ],
)
def test_groups_of_a_compute_unit(need: Need, groups: int) -> None:
    assert groups_per_cu(need) == groups


@pytest.mark.parametrize(("cu_count", "fits"), [(256, True), (255, False)])
def test_a_kernel_that_waits_for_its_own_groups_must_fit_at_once(cu_count: int, fits: bool) -> None:
    outcome = linted(SPIN, cu_count=cu_count, groups=256, vgprs=512)
    assert codes(outcome) == ([] if fits else ["co_residency"])


def test_registers_that_are_allocated_but_not_used_take_room_too() -> None:
    """As FlyDSL's small stage-1 kernels: 250 registers used, 264 allocated, so one wave per SIMD and not two."""
    options = {"cu_count": 128, "groups": 256, "vgprs": 250}
    assert codes(linted(SPIN, allocated=256, **options)) == []  # type: ignore[arg-type]
    found = linted(SPIN, allocated=264, **options)  # type: ignore[arg-type]
    assert codes(found) == ["co_residency"] and "264 registers" in found.findings[0].what
    assert found.data["kernels"][0]["vgprs_allocated"] == 264 and found.data["kernels"][0]["vgprs"] == 250


def test_registers_beyond_those_that_are_allocated_are_seen() -> None:
    found = linted(SPIN, vgprs=8)
    assert codes(found) == ["registers"] and "v11" in found.findings[0].what


@pytest.mark.parametrize("mode", [0xAF1000, 0xA30000, 0x2F0000, 0x4AF0000], ids=["rounds up", "flushes denormals",
                         "no IEEE mode", "fp8 saturates"])  # fmt: skip
def test_a_float_mode_other_than_the_proven_one_is_seen(mode: int) -> None:
    assert codes(linted("v_mov_b32_e32 v2, 0", mode=mode)) == ["start_state"]


def test_a_kernel_that_waits_for_nobody_may_have_any_grid() -> None:
    assert linted("v_mov_b32_e32 v2, 0", cu_count=4, groups=100_000, vgprs=512).status == "pass"


def test_stage_1_tells_its_grid_in_its_name() -> None:
    name = "mfma_fmoe1_persist_cu256_fp8q_v1"
    assert codes(linted(SPIN, name=name, cu_count=128, vgprs=512)) == ["co_residency"]
    assert linted(SPIN, name=name, cu_count=256, vgprs=512).status == "pass"


# ---- where code objects are found


def test_objects_are_found_in_files_folders_and_cache_entries_once_each(tmp_path: Path) -> None:
    one, two = code_object("s_endpgm", name="one"), code_object("s_endpgm", name="two")
    (tmp_path / "a.hsaco").write_bytes(one)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/b.hsaco").write_bytes(one)
    escaped = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:02X}" for b in two)
    (tmp_path / "deep/entry.pkl").write_bytes(b'\x80\x04 gpu.binary @k [bin = "' + escaped.encode() + b'"] tail')
    found = lint.collect([tmp_path, tmp_path / "a.hsaco"])
    assert [i.data for i in found] == [one, two]
    assert lint.judge(found, cu_count=256).status == "pass"


def test_a_bundle_brings_the_grid_of_its_launches(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    file = writer.code(code_object(SPIN + "\n s_endpgm", vgprs=512))
    launch = {"rank": 0, "name": "s", "kernel": "kernel", "code": file, "grid": [2, 129, 1], "block": [256, 1, 1],
              "dynamic_lds": 0, "kernarg": "", "pointers": []}  # fmt: skip
    writer.steps.append({"launches": [launch]})
    writer.close({"name": "one launch"}, 1)
    assert codes(lint.judge(lint.collect([tmp_path]), cu_count=256)) == ["co_residency"]
    assert lint.judge(lint.collect([tmp_path]), cu_count=258).status == "pass"
    whole = (tmp_path / "bundle.json").read_text()
    for spoilt, code in ((whole.replace("129", '"129"'), "bundle_format"), ("[]", "bundle_format")):
        (tmp_path / "bundle.json").write_text(spoilt)
        with pytest.raises(Problem) as caught:
            lint.collect([tmp_path])
        assert (caught.value.code, caught.value.exit_code) == (code, Exit.REFUSED)
    (tmp_path / "bundle.json").write_text(whole)
    (tmp_path / file).unlink()
    with pytest.raises(Problem) as caught:
        lint.collect([tmp_path])
    assert caught.value.code == "bundle_file"


def test_nothing_to_look_at_is_no_pass(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        lint.collect([tmp_path])
    assert (caught.value.code, caught.value.exit_code) == ("no_code_object", Exit.NO_EVIDENCE)
    with pytest.raises(Problem) as caught:
        lint.collect([tmp_path / "nowhere"])
    assert (caught.value.code, caught.value.exit_code) == ("lint_path", Exit.PRECONDITION)


def test_a_file_that_cannot_be_read_is_no_pass(tmp_path: Path) -> None:
    """A link to nothing was passed over, with the rest of its folder called whole."""
    (tmp_path / "a.hsaco").write_bytes(code_object("s_endpgm"))
    for target in (tmp_path / "nowhere", Path("/proc/self/mem")):
        (tmp_path / "b.hsaco").unlink(missing_ok=True)
        (tmp_path / "b.hsaco").symlink_to(target)
        with pytest.raises(Problem, match=r"b\.hsaco cannot be read") as caught:
            lint.collect([tmp_path])
        assert (caught.value.code, caught.value.exit_code) == ("lint_path", Exit.PRECONDITION)


def test_a_cache_entry_without_a_readable_kernel_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "a.hsaco").write_bytes(code_object("s_endpgm"))
    (tmp_path / "b.pkl").write_bytes(b"\x80\x04 another form")
    with pytest.raises(Problem, match=r"b\.pkl") as caught:
        lint.collect([tmp_path])
    assert caught.value.code == "no_code_object"


def test_every_finding_says_what_why_and_fix() -> None:
    bad = linted(f"{DATA}\n {DMA}\n s_barrier\n buffer_wbl2 sc1\n global_atomic_add v[6:7], v2, off sc1", scratch=8)
    assert {"scratch", "tile_not_landed", "payload_not_waited"} == set(codes(bad))
    assert all(f.what and f.why and f.fix and f.file for f in bad.findings)


def test_our_words_are_those_of_llvm() -> None:
    program = next((p for n in range(25, 19, -1) if (p := shutil.which(f"llvm-mc-{n}"))), None)
    if program is None:
        pytest.skip("no llvm-mc of LLVM 20 to 25 is installed (older ones do not know gfx950)")
    done = subprocess.run(
        [program, "--triple=amdgcn-amd-amdhsa", "--mcpu=gfx950", "--show-encoding"], input="\n".join(WORDS),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if "encoding:" in line]
    encoded = [bytes(int(b, 16) for b in line.split("[")[-1].rstrip("]").split(",")) for line in lines]
    assert encoded == [assemble(text) for text in WORDS]
