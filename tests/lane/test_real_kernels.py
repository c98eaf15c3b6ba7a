"""The pinned FlyDSL's kernels, captured and executed (MEGAMOE_FLYDSL_DIR): right where they are, wrong where they are.

Each fault of the plain kernels is shown here under the schedule that brings it out; the edits that end them are
proven in
tests/kernels. Captures compile for half a minute each, so one case is captured once for all tests.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_lane import elf
from kernel_lane.bundle import Bundle
from kernel_lane.decode import Instruction, decode
from kernel_lane.execute import Executor, Run
from kernel_lane.judge import compare
from kernel_lane.machine.schedule import Schedule
from megamoe.kernels.check import check
from megamoe.kernels.lint import collect, judge
from megamoe.kernels.lint_flow import Flow
from megamoe.kernels.lint_silicon import Gap, gaps, packed_float_faults
from megamoe.kernels.lint_steps import step_of
from megamoe.resources import resource
from real import checkout, python_with

pytestmark = [pytest.mark.checkout, pytest.mark.slow]


def wrong(executor: Executor, schedule: str, **options: object) -> tuple[bool, Run]:
    run = executor.run(dataclasses.replace(Schedule.parse(schedule), **{"limit": 20_000_000} | options))  # type: ignore[arg-type]
    return bool(run.stop or compare(executor.bundle, run.results)), run


def kinds(run: Run, kernel: str) -> set[tuple[str, str]]:
    return {(f.kind, f.buffer.split(".", 1)[-1]) for f in run.findings if f.kernel == kernel}


@pytest.mark.parametrize("case", ["micro", "micro_compact", "micro_u32", "small", "w2", "w2_compact", "w8"])
def test_a_golden_layer_is_exact_in_order_at_random_and_overlapping(captured, case: str) -> None:  # type: ignore[no-untyped-def]
    executor = captured(case, golden=True)
    # At eight ranks random schedules meet E9, which has a test of its own below.
    schedules = [("order", False), ("order", True)] + [("random@3", False)] * (case != "w8")
    for schedule, overlap in schedules:
        run = executor.run(Schedule.parse(schedule), overlap=overlap)
        assert run.stop == "" and compare(executor.bundle, run.results) == [], (schedule, overlap)
    assert not [
        f for f in run.findings if f.kind in ("write_past_end", "unmapped", "freed", "barrier_missed", "lds_bounds")
    ]


def test_e9_the_fixed_slot_flag_is_published_before_its_counts(captured) -> None:  # type: ignore[no-untyped-def]
    assert wrong(captured("micro", golden=True), "frozen")[0]
    assert not wrong(captured("micro_compact", golden=True), "frozen")[0]


def test_e9_shows_in_plain_random_schedules_at_eight_ranks(captured) -> None:  # type: ignore[no-untyped-def]
    executor = captured("w8_changing")
    assert any(wrong(executor, f"random@{seed}")[0] for seed in range(1, 25))


def test_l1_waves_read_a_tile_before_it_has_landed(captured) -> None:  # type: ignore[no-untyped-def]
    for case in ("dense", "dense_compact"):
        executor = captured(case)
        runs = [wrong(executor, f"late:fifo+@{seed}") for seed in range(10)]
        assert any(bad for bad, _ in runs), case
        assert {("lds_early", "LDS"), ("barrier_dma", "LDS")} <= kinds(runs[0][1], "stage1")
        assert not any(f.kind == "register_early" for _, run in runs for f in run.findings), (
            "the compiler's own waits are right"
        )
    clean = captured("dense_noasync")
    for seed in range(4):
        _, run = wrong(clean, f"late:fifo+@{seed}")
        assert ("barrier_dma", "LDS") not in kinds(run, "stage1")


def test_l2_payload_stores_that_nobody_waits_for_are_seen_in_one_ordered_run(captured) -> None:  # type: ignore[no-untyped-def]
    for case, seen in (("micro", True), ("w2", True), ("micro_compact", False), ("w2_compact", False)):
        bad, run = wrong(captured(case, golden=True), "order", check_races=True)
        assert not bad
        assert (("unordered_read", "gm.rx_em") in kinds(run, "stage1")) is seen, case


@pytest.mark.parametrize("case", ["cu4", "a4w4_cu4"])
def test_e2_the_xcd_swizzle_loses_tiles_on_four_compute_units(captured, case: str) -> None:  # type: ignore[no-untyped-def]
    executor = captured(case, exit_code=1)
    run = executor.run()
    differences = compare(executor.bundle, run.results)
    assert len(differences) == len(executor.bundle.case["forwards"])
    assert all(d.relative > 0.5 for d in differences)


FIXED_SLOT = {"flag_before_data", "payload_not_waited"}  # E9, L2
LINTED = {
    "micro": FIXED_SLOT, "w2": FIXED_SLOT, "w8_changing": FIXED_SLOT, "a4w4": FIXED_SLOT, "micro_compact": set(),
    "w2_compact": set(), "w8_compact": set(), "dense": FIXED_SLOT | {"tile_not_landed"},
    "dense_compact": {"tile_not_landed"}, "dense_noasync": FIXED_SLOT,
}  # fmt: skip


@pytest.mark.parametrize("case", LINTED)
def test_the_linter_reads_in_what_is_captured_the_faults_that_execution_shows(captured, case: str) -> None:  # type: ignore[no-untyped-def]
    bundle = captured(case, golden=case in ("micro", "w2", "micro_compact", "w2_compact")).bundle
    linted = judge(collect([bundle.folder]), cu_count=bundle.case["cu"])
    assert {f.code for f in linted.findings} == LINTED[case]
    assert {"stage1", "gemm2"} <= {launch["name"] for s in bundle.steps for launch in s.get("launches", [])}


def test_check_reports_a_fault_that_its_schedules_did_not_bring_out(captured) -> None:  # type: ignore[no-untyped-def]
    outcome = check(captured("dense").bundle.folder, "order", 1)
    assert outcome.status == "fail"
    assert {f.code for f in outcome.findings if f.severity == "error"} == FIXED_SLOT | {"tile_not_landed"}
    assert all(r["exact"] for r in outcome.data["runs"])


@pytest.mark.parametrize("case", ["micro", "micro_compact"])
@pytest.mark.parametrize(("launches", "ends"), [(2**31 - 2, True), (2**31 - 1, False)])
def test_e1_stage_1_waits_for_ever_at_launch_two_to_the_31(
    captured, tmp_path: Path, case: str, launches: int, ends: bool
) -> None:  # type: ignore[no-untyped-def]
    executor = captured(case, golden=True)
    aged = age(executor.bundle, tmp_path / "aged", launches)
    run = Executor(aged).run(Schedule(limit=2_000_000))
    assert (run.stop == "") is ends, run.stop
    assert ends or run.stop.startswith("limit in stage1")


def age(bundle: Bundle, folder: Path, launches: int) -> Bundle:
    """The bundle as it would be after so many launches: its epoch counters set, nothing else."""
    shutil.copytree(bundle.folder, folder)
    body = json.loads((folder / "bundle.json").read_text())
    stage1 = next(x for s in body["steps"] for x in s.get("launches", []) if x["name"] == "stage1")
    blocks = stage1["grid"][0] * stage1["grid"][1]
    values = {"s1_meta": launches, "gm.gb1": launches * blocks, "gm.meta2": launches, "gm.gb_cnt": launches * blocks}
    compact = any(b["name"].endswith("gm.meta2") for b in body["buffers"])
    if compact:
        values |= {"gm.done2": launches, "gm.cnt_done": launches}
    for buffer in body["buffers"]:
        field = buffer["name"].split(".", 1)[1]
        if field in values:
            content = struct.pack("<q", values[field]) if buffer["bytes"] == 8 else struct.pack("<i", values[field])
            name = f"data/aged-{field}.bin"
            (folder / name).write_bytes(content.ljust(buffer["bytes"], b"\0"))
            buffer["init"] = {"file": name}
    (folder / "bundle.json").write_text(json.dumps(body))
    return Bundle.read(folder)


@pytest.mark.parametrize(
    "case",
    ["a4w4", "one_token", "k8", "k1", "skew_rank", "skew_expert", "values", "w8_compact", "flash_width", "pro_width",
     "cu256", "cu256_one_token", "nonfused"],
)  # fmt: skip
def test_a_case_by_formula_equals_the_reference(captured, case: str) -> None:  # type: ignore[no-untyped-def]
    executor = captured(case)
    assert not wrong(executor, "order")[0]


@pytest.mark.parametrize(
    ("golden", "code"), [("w8.npz", "golden_case"), ("formula/k1.npz", "golden")], ids=["of another case", "by formula"]
)
def test_a_golden_file_of_another_layer_is_refused(tmp_path: Path, golden: str, code: str) -> None:
    flydsl = checkout("MEGAMOE_FLYDSL_DIR")
    python = python_with("flydsl.expr.buffer_ops, torch", "MEGAMOE_FLYDSL_PYTHON")
    words = ["--flydsl", str(flydsl), "--case", "micro", "--out", str(tmp_path / "out"), "--python", python]
    words += ["--golden", str(resource("tests/golden") / golden)]
    done = subprocess.run(
        [sys.executable, "-m", "megamoe", "kernels", "capture", *words, "--json"],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 2 and json.loads(done.stdout)["findings"][0]["code"] == code
    assert not (tmp_path / "out" / "bundle.json").exists()


def test_a_flydsl_of_another_commit_is_refused(captured, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    flydsl = checkout("MEGAMOE_FLYDSL_DIR")
    shutil.copytree(flydsl / "kernels", tmp_path / "kernels")
    file = tmp_path / "kernels" / "mega_moe" / "kloop.py"
    file.write_text(file.read_text() + "\n")
    python = python_with("flydsl.expr.buffer_ops, torch", "MEGAMOE_FLYDSL_PYTHON")
    done = subprocess.run([sys.executable, "-m", "megamoe", "kernels", "capture", "--flydsl", str(tmp_path), "--case",
    "micro", "--out",
                           str(tmp_path / "out"), "--python", python, "--json"], capture_output=True, text=True,
                           timeout=600)  # fmt: skip
    assert done.returncode == 2 and json.loads(done.stdout)["findings"][0]["code"] == "flydsl_commit"


def test_the_path_that_is_not_fused_is_exact_at_random_when_the_hosts_copy_is_made_anew(  # type: ignore[no-untyped-def]
    captured, tmp_path: Path
) -> None:
    """Dispatch hands out slots as waves arrive, and the host code copies the slots' experts for the sort."""
    executor = captured("nonfused")
    (copies,) = [s["copy"] for s in executor.bundle.steps if "copy" in s]
    assert [(c["buffer"], c["from"], c["bytes"]) for c in copies] == [("r0.nf_recv_topk", "r0.op.disp_out_idx", 40)]
    seeds = range(1, 13)
    assert not [seed for seed in seeds if wrong(executor, f"random@{seed}")[0]]
    # The same bundle with what the copy held in order, as a constant: tokens meet other tokens' experts.
    in_order = executor.run().memory["r0.op.disp_out_idx"][:40].tobytes()
    frozen = planted(executor.bundle, tmp_path / "constant", in_order)
    assert not wrong(frozen, "order")[0]
    assert len([seed for seed in seeds if wrong(frozen, f"random@{seed}")[0]]) >= 10


def planted(bundle: Bundle, folder: Path, content: bytes) -> Executor:
    """The bundle with these bytes where its host code fills nf_recv_topk."""
    shutil.copytree(bundle.folder, folder)
    body = json.loads((folder / "bundle.json").read_text())
    (folder / "data" / "planted-recv.bin").write_bytes(content)
    write = {"buffer": "r0.nf_recv_topk", "offset": 0, "file": "data/planted-recv.bin"}
    body["steps"] = [{"host": [write]} if "copy" in s else s for s in body["steps"]]
    (folder / "bundle.json").write_text(json.dumps(body))
    return Executor(Bundle.read(folder))


@pytest.mark.parametrize("case", ["micro", "micro_u32", "small", "w2_compact", "k8", "a4w4"])
def test_the_compiler_keeps_every_distance_and_not_one_wait_state_more(captured, case: str) -> None:  # type: ignore[no-untyped-def]
    """So the linter's numbers are this compiler's: with each `s_nop` one state shorter, most of them are too few."""
    executor = captured(case)
    nops = short = 0
    for name in {launch["code"] for s in executor.bundle.steps for launch in s.get("launches", [])}:
        code = elf.read(executor.bundle.bytes_of(name))
        for kernel in code.kernels:
            instructions = list(decode(code.code(kernel), kernel.entry))
            assert too_close(instructions) == [] and packed_float_faults(instructions) == []
            less = [dataclasses.replace(i, imm=i.imm - 1) if i.name == "s_nop" else i for i in instructions]
            found = too_close(less)
            nops += sum(i.name == "s_nop" for i in instructions)
            short += len({g.second.pc for g in found})
    assert short > nops / 2 > 10, "the others align loops"


def too_close(instructions: list[Instruction]) -> list[Gap]:
    return list(gaps(instructions, Flow([step_of(i) for i in instructions])))
