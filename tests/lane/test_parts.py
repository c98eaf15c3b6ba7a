"""The kernels captured alone: what they must compute (every run), and that they compute it (MEGAMOE_FLYDSL_DIR)."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path

import kernel_lane
import numpy as np
import pytest
from kernel_lane import parts_definition as definition
from kernel_lane.bundle import Bundle
from kernel_lane.capture.parts import PARTS, Quant, Sort, choose
from kernel_lane.execute import Executor, Run
from kernel_lane.judge import compare
from kernel_lane.machine.schedule import Schedule
from megamoe_atom.kernel import blob_id
from megamoe_atom.problem import Problem
from real import checkout, python_with

PACKAGES = Path(kernel_lane.__file__).parents[1]
SORTS = [p for p in PARTS.values() if isinstance(p, Sort)]
QUANTS = [p for p in PARTS.values() if isinstance(p, Quant)]
# Without a mask, more tokens than one wave holds: the second kernel's prefix sums are overwritten while they are read.
RACE = {"moe_sort_two_wide", "moe_sort_four"}
RIGHT = [name for name in PARTS if name not in RACE]


def run(executor: Executor, schedule: str, **checks: bool) -> Run:
    return executor.run(dataclasses.replace(Schedule.parse(schedule), limit=5_000_000, **checks))  # type: ignore[arg-type]


def exact(executor: Executor, schedule: str) -> bool:
    done = run(executor, schedule)
    return not done.stop and compare(executor.bundle, done.results) == []


@pytest.mark.parametrize("part", SORTS, ids=lambda p: p.name)
def test_the_sort_definition_holds_every_chosen_pair_once_in_its_experts_blocks(part: Sort) -> None:
    ids, weights = definition.sort_inputs(part)
    out = definition.sort_outputs(part)
    rows, blocks = np.frombuffer(out["token_ids"], np.int32), np.frombuffer(out["expert_ids"], np.int32)
    row_weights = np.frombuffer(out["weights"], np.float32)
    valid, tokens = np.frombuffer(out["num_valid"], np.int32)
    mine = np.flatnonzero(part.mask or (1,) * part.experts)
    slots, numbers = rows[:valid] >> 24, rows[:valid] & 0xFFFFFF
    is_pair = slots < part.topk
    assert tokens == part.tokens and valid % part.unit == 0 and set(numbers[~is_pair]) <= {part.tokens}
    chosen = {(t, s) for t in range(part.tokens) for s in range(part.topk) if ids[t, s] in mine}
    pairs = list(zip(numbers[is_pair], slots[is_pair], strict=True))
    assert len(pairs) == len(chosen) and set(pairs) == chosen
    experts = mine[np.repeat(blocks[: valid // part.unit], part.unit)][is_pair]
    assert [ids[p] for p in pairs] == list(experts)
    assert [weights[p] for p in pairs] == list(row_weights[:valid][is_pair]) and not row_weights[:valid][~is_pair].any()
    order = [(e, t) for e, (t, _) in zip(experts, pairs, strict=True)]
    assert order == sorted(order)
    assert set(out["token_ids"][4 * valid :]) == {definition.UNTOUCHED}


@pytest.mark.parametrize("part", QUANTS, ids=lambda p: p.name)
def test_the_quantisers_input_reaches_zero_both_neighbours_of_a_power_and_sixteen_scales(part: Quant) -> None:
    values = definition.quant_input(part).float().reshape(-1, 32)
    largest = set(values.abs().amax(1).tolist())
    assert {0.0, 448.0, 450.0, 6.0 if part.form == "fp4" else 452.0} <= largest and max(largest) > 3.2e38
    scale = np.frombuffer(definition.quant_outputs(part)["scale"], np.uint8)
    assert len(set(scale)) >= 16
    codes = np.frombuffer(definition.quant_outputs(part)["payload"], np.uint8)
    assert len(set(codes)) == {"fp8": 254, "fp4": 256}[part.form], "every code but the two NaNs of fp8"


def test_an_unknown_case_names_layers_and_parts() -> None:
    with pytest.raises(Problem, match=r"micro.*quant_fp8.*moe_sort"):
        choose("moe_sorting")


@pytest.mark.checkout
@pytest.mark.slow
@pytest.mark.parametrize("case", RIGHT)
def test_a_kernel_alone_is_exact_in_order_frozen_at_random_and_late(captured, case: str) -> None:  # type: ignore[no-untyped-def]
    executor = captured(case)
    assert all(exact(executor, s) for s in ("order", "frozen", *(f"random@{seed}" for seed in range(12))))
    findings = [f for seed in range(4) for f in run(executor, f"random@{seed}", check_lds=True).findings]
    assert case == "moe_sort_two" or "lds_unordered" not in {f.kind for f in findings}
    late = ("late", "late:any", "slow", "scatter")
    assert all(exact(executor, f"{s}@{seed}") for s in late for seed in range(6))
    kernels = {launch["kernel"] for s in executor.bundle.steps for launch in s.get("launches", [])}
    assert len(kernels) == (4 if "four" in case else 2 if "two" in case else 1)


@pytest.mark.checkout
@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(RACE))
def test_the_sort_without_a_mask_overwrites_prefix_sums_that_other_waves_still_read(captured, case: str) -> None:  # type: ignore[no-untyped-def]
    executor = captured(case, exit_code=1)
    done = run(executor, "order", check_lds=True)
    assert {d.name for d in compare(executor.bundle, done.results)} == {"token_ids", "weights"}
    unordered = [f for f in done.findings if f.kind == "lds_unordered"]
    assert unordered and all(f.kernel.startswith("p23_kernel") for f in unordered)
    assert len({f.pc for f in unordered}) == 1, "the one read of both ends of an expert's rows"


def capture_process(flydsl: Path, case: str, out: Path, known: str = "") -> subprocess.CompletedProcess[str]:
    """A capture in flydsl's Python; `known` is the id of an edited sort that this one process is to accept."""
    python = python_with("flydsl.expr.buffer_ops, torch", "MEGAMOE_FLYDSL_PYTHON")
    accept = f"files['kernels/moe/moe_sorting_kernel.py'] = {{frozenset(): {known!r}}}\n" if known else ""
    code = f"import runpy\nfrom megamoe_atom import kernel_edits\nfiles = kernel_edits.pinned().files\n{accept}"
    code += "runpy.run_module('kernel_lane.capture', run_name='__main__')"
    env = os.environ | {"PYTHONPATH": str(PACKAGES)}
    words = [python, "-c", code, str(flydsl), case, str(out)]
    return subprocess.run(words, capture_output=True, text=True, timeout=600, env=env)


@pytest.mark.checkout
@pytest.mark.slow
def test_one_barrier_before_that_write_makes_the_sort_right(tmp_path: Path) -> None:
    flydsl = checkout("MEGAMOE_FLYDSL_DIR")
    shutil.copytree(flydsl / "kernels", tmp_path / "kernels")
    file = tmp_path / "kernels" / "moe" / "moe_sorting_kernel.py"
    before, write, after = file.read_text().partition("            _lds_store_raw(cumsum_mr, local_idx_p23, tid)\n")
    assert write
    file.write_text(f"{before}            gpu.barrier()\n{write}{after}")
    done = capture_process(tmp_path, "moe_sort_four", tmp_path / "refused")
    assert done.returncode == 2 and "moe_sorting_kernel.py has git blob id" in done.stdout
    assert not (tmp_path / "refused" / "bundle.json").exists()
    done = capture_process(tmp_path, "moe_sort_four", tmp_path / "out", known=blob_id(file.read_bytes()))
    assert done.returncode == 0, done.stdout[-2000:]
    executor = Executor(Bundle.read(tmp_path / "out"))
    assert all(exact(executor, s) for s in ("frozen", *(f"random@{seed}" for seed in range(12))))


@pytest.mark.checkout
@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in RIGHT if "masked" not in name])
def test_a_changed_input_and_any_spoilt_output_are_seen(captured, tmp_path: Path, case: str) -> None:  # type: ignore[no-untyped-def]
    bundle = captured(case).bundle
    results = run(Executor(bundle), "order").results
    for name, have in results.items():
        for at in (0, have.size // 2, have.size - 1):
            spoilt = have.copy()
            spoilt[at] ^= 1
            assert [d.name for d in compare(bundle, results | {name: spoilt})] == [name]
    shutil.copytree(bundle.folder, tmp_path / "changed")
    body = json.loads((tmp_path / "changed" / "bundle.json").read_text())
    first = body["steps"][0]["launches"][0]["pointers"][0][1]  # the activations, or the expert ids
    entry = next(b for b in body["buffers"] if b["name"] == first)
    content = bytearray((bundle.folder / entry["init"]["file"]).read_bytes())
    at, bit = (-1, 0x80) if case.startswith("quant") else (-4, 1)  # a value's sign, an expert's lowest bit
    content[at] ^= bit
    (tmp_path / "changed" / "data" / "changed.bin").write_bytes(content)
    entry["init"] = {"file": "data/changed.bin"}
    (tmp_path / "changed" / "bundle.json").write_text(json.dumps(body))
    assert not exact(Executor(Bundle.read(tmp_path / "changed")), "order")
