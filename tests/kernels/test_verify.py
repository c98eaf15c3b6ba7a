"""`kernels verify` with the reference class in the GPUs' place: every rank's own code runs, in a thread per rank."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_lane.layer import golden_inputs
from megamoe.kernels import verify
from megamoe.kernels.verify_cases import Case, build_reference, cases_for, formula_case, golden_case, with_answers
from megamoe.kernels.verify_judge import REL_L2_BOUND, distance, judge_case
from megamoe.kernels.verify_rank import Forward, load_case, run_rank, save_case
from megamoe.resources import resource
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.reference import ReferenceGroup

torch.set_num_threads(1)
GOLDEN = resource("tests/golden")
Spoil = Callable[[Case, int, int, torch.Tensor], torch.Tensor]


class Group:
    """W ranks of the reference, one thread each; their forward is collective, as on GPUs."""

    def __init__(self, ranks: int, spoil: Spoil) -> None:
        self.ranks, self._spoil = ranks, spoil
        self._meet = threading.Barrier(ranks)
        self._groups: dict[str, ReferenceGroup] = {}
        self._inputs: list[Any] = [None] * ranks
        self._outs: list[Any] = []
        self._calls = 0
        self._lock = threading.Lock()

    def make(self, case: Case, rank: int) -> Forward:
        with self._lock:
            group = self._groups.setdefault(case.name, ReferenceGroup(self.ranks))
            build_reference(case, rank, group)
        self._meet.wait()

        def forward(x: Any, weights: Any, ids: Any) -> Any:
            self._inputs[rank] = (x, ids, weights)
            if self._meet.wait() == 0:
                self._outs = [o.clone() for o in group.forward(self._inputs)]
                self._calls += 1
            self._meet.wait()
            out = self._spoil(case, rank, self._calls, self._outs[rank])
            self._meet.wait()
            return out

        return forward


def threads(spoil: Spoil = lambda _case, _rank, _call, out: out) -> verify.Executor:
    def execute(job: Path, ranks: int) -> None:
        group = Group(ranks, spoil)
        failed: list[BaseException] = []

        def work(rank: int) -> None:
            try:
                run_rank(job, rank, group.make, "cpu")
            except BaseException as error:
                failed.append(error)
                group._meet.abort()

        running = [threading.Thread(target=work, args=(r,)) for r in range(ranks)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if failed:
            raise failed[0]

    return execute


@pytest.fixture(scope="module")
def few() -> list[Case]:
    """A golden vector of two ranks, and changing routing on them."""
    made = formula_case("changing routing", ranks=2, experts=8, topk=3, forwards=3, runs=30)
    return [golden_case(GOLDEN / "w2.npz"), with_answers(made)]


def test_the_reference_in_the_gpus_place_is_bit_equal_on_every_case() -> None:
    outcome = verify.verify(cases_for(2, GOLDEN, clamp=True, runs=4), None, threads())
    assert outcome.status == "pass"
    assert outcome.findings == []
    names = [c["case"] for c in outcome.data["cases"]]
    assert names == ["golden w2", "changing routing", "compact dispatch", "limit 10"]
    assert all(c["bit_equal"] and not c["unsteady_runs"] for c in outcome.data["cases"])
    json.dumps(outcome.data)


def test_eight_ranks_meet_their_golden_vector() -> None:
    outcome = verify.verify([golden_case(GOLDEN / "w8.npz")], None, threads())
    assert (outcome.status, outcome.data["ranks"]) == ("pass", 8)
    assert outcome.data["cases"][0]["bit_equal"]


def swapped(case: Case, rank: int, _call: int, out: torch.Tensor) -> torch.Tensor:
    return out.flip(0) if rank == 1 else out


def stale(case: Case, rank: int, call: int, out: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(out) if rank == 0 and call == 1 else out


def not_a_number(case: Case, rank: int, _call: int, out: torch.Tensor) -> torch.Tensor:
    return out.clone().index_fill_(0, torch.tensor([0]), float("nan")) if rank == 1 else out


def too_few(case: Case, rank: int, _call: int, out: torch.Tensor) -> torch.Tensor:
    return out[:-1] if rank == 1 else out


@pytest.mark.parametrize("fault", [swapped, stale, not_a_number, too_few], ids=lambda f: f.__name__)
def test_rows_that_are_wrong_are_called_wrong(fault: Spoil, few: list[Case]) -> None:
    outcome = verify.verify(few, None, threads(fault))
    assert outcome.exit_code is Exit.CHECK_FAILED
    assert "kernel_wrong" in {f.code for f in outcome.findings}


def test_a_place_that_changes_between_runs_is_unsteady_even_within_the_bound(few: list[Case]) -> None:
    def shaky(case: Case, rank: int, call: int, out: torch.Tensor) -> torch.Tensor:
        if case.name == "changing routing" and rank == 1 and call % 7 == 0:
            out = out.clone()
            out.view(torch.int16)[0, 0] += 1
        return out

    outcome = verify.verify(few, None, threads(shaky))
    assert [f.code for f in outcome.findings if f.severity == "error"] == ["kernel_unsteady"]
    assert "changing routing" in outcome.findings[-1].what


def test_an_approximate_exponential_stays_within_the_bound_and_is_reported(few: list[Case]) -> None:
    def rounded(case: Case, _rank: int, _call: int, out: torch.Tensor) -> torch.Tensor:
        # One value in 50 is one bf16 place off: many times more than one unit of float32 can cause.
        spoiled = out.clone()
        spoiled.view(torch.int16).view(-1)[::50] += 1
        return spoiled

    outcome = verify.verify(few, None, threads(rounded))
    assert outcome.status == "pass"
    assert {f.code for f in outcome.findings} == {"kernel_last_place"}
    assert all(0 < c["worst_rel_l2"] < REL_L2_BOUND for c in outcome.data["cases"])


def test_float32_sums_and_a_perturbed_silu_stay_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The justification of the bound, executed: float32 sums, and an exp2 that is off by one unit in the last place."""
    from megamoe.kernels import verify_cases
    from megamoe_atom import reference

    generator = torch.Generator().manual_seed(5)
    real = torch.exp2

    def rough(t: torch.Tensor) -> torch.Tensor:
        off = torch.randint(-1, 2, t.shape, generator=generator).to(t.dtype)
        return real(t) * (1 + off * 2.0**-23)

    case = formula_case("rough", ranks=1, experts=4, topk=2, forwards=4)
    with_answers(case)
    monkeypatch.setattr(reference.torch, "exp2", rough)
    group = ReferenceGroup(1)
    reference.MegaMoE(**verify_cases.arguments(case, 0, "cpu"), group=group, accumulate=torch.float32)
    outs = [
        [verify_cases.bits(group.forward([(verify_cases.bf16(x), torch.from_numpy(i), torch.from_numpy(w))])[0])]
        for ((x, i, w),) in case.forwards
    ]
    findings, data = judge_case("rough", outs, case.expected, [["h"]], [0])
    assert not [f for f in findings if f.severity == "error"]
    assert data["worst_rel_l2"] < REL_L2_BOUND / 2


def test_distances_are_counted_in_places_of_bf16() -> None:
    want = np.array([[0x3F80, 0x0000, 0x8001, 0x3F80]], np.uint16)
    got = np.array([[0x3F81, 0x8000, 0x0001, 0x3F86]], np.uint16)
    d = distance(got, want)
    assert d.places == (1, 1, 1, 0, 1)
    assert d.worst_place == 6
    with pytest.raises(ValueError, match="against"):
        distance(got, want[:, :2])


@pytest.mark.parametrize("bad", [0x7F80, 0x7FC0], ids=["infinite", "not a number"])
def test_an_answer_that_is_not_finite_compares_with_nothing(bad: int) -> None:
    """A norm that is itself no number is not above any bound: it would have let every output pass."""
    want = np.array([[0x3F80, bad]], np.uint16)
    got = np.array([[0x4F80, 0x3F80]], np.uint16)
    findings, row = judge_case("c", [[got]], [[want]], [["h"]], [0])
    assert [f.code for f in findings] == ["kernel_wrong"]
    assert np.isfinite(row["worst_rel_l2"]) and row["non_finite"] == 1


def test_a_case_survives_its_file_without_its_answer(tmp_path: Path) -> None:
    case = golden_case(GOLDEN / "w2.npz")
    save_case(tmp_path / "c.npz", case)
    back = load_case(tmp_path / "c.npz")
    assert (back.name, back.ranks, back.mtpr, back.shape, back.order) == (
        case.name, case.ranks, case.mtpr, case.shape, case.order
    )  # fmt: skip
    assert back.expected == []
    assert all((back.raw[k] == case.raw[k]).all() for k in case.raw)


def test_every_input_of_the_changing_routing_case_runs_equally_often() -> None:
    case = formula_case("r", ranks=1, experts=4, topk=2, forwards=10, runs=50)
    assert sorted(case.order) == sorted(list(range(10)) * 5)
    routings = {f[0][1].tobytes() for f in case.forwards}
    assert len(routings) == 10


def test_kernels_without_a_limit_are_not_asked_for_one() -> None:
    assert all(not c.swiglu_limit for c in cases_for(1, GOLDEN, clamp=False, runs=2))
    assert any(c.swiglu_limit for c in cases_for(1, GOLDEN, clamp=True, runs=2))


def test_compact_dispatch_is_asked_for_by_more_than_64_experts_on_a_rank() -> None:
    (compact,) = [c for c in cases_for(2, GOLDEN, clamp=False, runs=2) if c.name == "compact dispatch"]
    assert compact.shape[2] // compact.ranks > 64


# ---- without GPUs, and processes that fail


def test_without_a_gpu_nothing_is_verified_and_nothing_passes() -> None:
    outcome = verify.on_this_node(None, GOLDEN, None, 1.0)
    assert (outcome.status, outcome.exit_code) == ("not_run", Exit.NO_EVIDENCE)


def rank_module(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A job whose ranks run `body` in place of our module."""
    script = folder / "python"
    script.write_text(f"#!{sys.executable}\nimport sys, time\nrank = int(sys.argv[-1])\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(verify.sys, "executable", str(script))
    return folder


def test_a_rank_that_dies_ends_the_others_and_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = rank_module(tmp_path, monkeypatch, "if rank == 1: print('no such device'); sys.exit(3)\ntime.sleep(600)")
    with pytest.raises(Problem) as caught:
        verify.processes(60)(job, 3)
    assert caught.value.code == "verify_rank"
    assert "rank 1 ended with exit code 3" in str(caught.value)
    assert "no such device" in str(caught.value)


def test_a_hang_is_called_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = rank_module(tmp_path, monkeypatch, "time.sleep(600)")
    with pytest.raises(Problem, match="still running after"):
        verify.processes(1.0)(job, 2)


WRITES = "from pathlib import Path; Path(sys.argv[-2], f'out-{rank}.npz').touch()"


def test_ranks_that_end_well_leave_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify.processes(60)(rank_module(tmp_path, monkeypatch, WRITES), 2)


def test_a_rank_that_ends_well_without_a_result_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = rank_module(tmp_path, monkeypatch, f"if rank == 1: sys.exit()\n{WRITES}")
    with pytest.raises(Problem, match="rank 1 ended without a result") as caught:
        verify.processes(60)(job, 2)
    assert caught.value.exit_code is Exit.CHECK_FAILED


WHOLE = (GOLDEN / "w2.npz").read_bytes()


@pytest.mark.parametrize(
    "content", [b"", b"not a zip", WHOLE[: len(WHOLE) // 2], WHOLE[:5000] + bytes(5000) + WHOLE[10000:]],
    ids=["empty", "not a zip", "cut off", "spoilt inside"],
)  # fmt: skip
def test_a_file_that_is_no_vector_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(Problem, match=r"x\.npz") as caught:
        golden_case(tmp_path / "x.npz")
    assert caught.value.code == "golden_file"
    with pytest.raises(Problem) as caught:
        golden_inputs(tmp_path / "x.npz")
    assert caught.value.code == "golden"


def test_a_folder_without_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        cases_for(1, tmp_path, clamp=False, runs=1)
    assert caught.value.code == "golden_missing"
