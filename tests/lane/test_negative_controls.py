"""Every fault that the adapter's self-test knows, planted under the executed kernels, is seen by `kernels check`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from kernel_lane.bundle import Bundle
from kernel_lane.capture.cases import find
from kernel_lane.execute import Executor, write_results
from kernel_lane.formula import Weights
from kernel_lane.layer import golden_inputs, reference_outputs, shuffled
from megamoe.envelope import Outcome
from megamoe.kernels.check import check, compare_only
from megamoe_atom import layout
from megamoe_atom.selftest import VARIANTS

pytestmark = [pytest.mark.checkout, pytest.mark.slow]
VECTORS = Path(__file__).parents[1] / "golden"
GOLDEN = VECTORS / "w2.npz"
CASE = find("w2")
FIELDS = {"w1": "s1_w1", "w1_scale": "s1_w1_scale", "w2": "w2", "w2_scale": "w2_scale"}
Change = Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]


@pytest.fixture(scope="module")
def folder(captured) -> Path:  # type: ignore[no-untyped-def]
    path: Path = captured("w2", golden=True).bundle.folder
    return path


def replaced(folder: Path, to: Path, contents: dict[str, bytes], expected: dict[str, bytes] | None = None) -> Path:
    """The bundle with other initial content in some buffers, and other expectations where they are given."""
    shutil.copytree(folder, to)
    body = json.loads((to / "bundle.json").read_text())
    names = {b["name"]: b for b in body["buffers"]}
    for entry in (e for s in body["steps"] for e in s.get("expect", [])):
        if expected:
            (to / "data" / f"planted-{entry['name']}.bin").write_bytes(expected[entry["name"]])
            entry["file"] = f"data/planted-{entry['name']}.bin"
    for name, content in contents.items():
        assert len(content) == names[name]["bytes"], name
        (to / "data" / f"planted-{name}.bin").write_bytes(content)
        names[name]["init"] = {"file": f"data/planted-{name}.bin"}
    (to / "bundle.json").write_text(json.dumps(body))
    return to


def told(outcome: Outcome) -> bool:
    """Whether the output is called wrong; the linter also tells the plain checkout's own faults (E9, L2)."""
    return any(f.code in ("output_differs", "kernel_stopped") for f in outcome.findings)


def seen(folder: Path) -> bool:
    return told(check(folder, "order", 1))


def raw_of(rank: int) -> tuple[torch.Tensor, ...]:
    w, _, _ = golden_inputs(GOLDEN)
    mine = slice(rank * 2, rank * 2 + 2)
    return tuple(torch.from_numpy(a[mine].copy()) for a in (w.w13, w.w13_scale, w.w2, w.w2_scale))


def weights_of(raw: tuple[torch.Tensor, ...], rank: int) -> dict[str, bytes]:
    """The buffers that hold one rank's converted weights."""
    two = [np.concatenate([t.numpy()] * 2) for t in raw]  # shuffled() takes the experts of all ranks
    converted = shuffled(CASE, Weights(*two), rank)
    return {f"r{rank}.{FIELDS[k]}": t.numpy().tobytes() for k, t in converted.items()}


WEIGHTS = [(kind, n) for kind, changes in VARIANTS.items() for n in range(len(changes))]


@pytest.mark.parametrize(("kind", "which"), WEIGHTS, ids=[f"{k} {n}" for k, n in WEIGHTS])
def test_wrong_weights_on_one_rank_are_seen(folder: Path, tmp_path: Path, kind: str, which: int) -> None:
    raw = VARIANTS[kind][which](raw_of(1))  # type: ignore[arg-type]
    assert seen(replaced(folder, tmp_path / "b", weights_of(raw, 1)))


def _bad_pad(raw: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Scales of w2 as if each expert's rows were padded alone: a block of 32 rows moves by a pad's width."""
    s2 = raw[3].flatten(0, 1)
    return (*raw[:3], torch.cat((torch.zeros_like(s2[:32]), s2[:-32])).view(raw[3].shape))


def test_a_wrong_pad_of_the_scales_is_seen(folder: Path, tmp_path: Path) -> None:
    assert seen(replaced(folder, tmp_path / "b", weights_of(_bad_pad(raw_of(1)), 1)))


def test_weights_laid_out_separated_but_read_interleaved_are_seen(folder: Path, tmp_path: Path) -> None:
    raw = raw_of(1)
    separated = {
        "r1.s1_w1": layout.shuffle_w13(raw[0], gate_up=False).reshape(-1).numpy().tobytes(),
        "r1.s1_w1_scale": layout.shuffle_w13_scale(raw[1], gate_up=False).reshape(-1).numpy().tobytes(),
    }
    assert seen(replaced(folder, tmp_path / "b", separated))


@pytest.mark.parametrize("clamped", [True, False], ids=["answers with the limit", "answers without it"])
def test_a_missing_clamp_is_seen(captured, tmp_path: Path, clamped: bool) -> None:  # type: ignore[no-untyped-def]
    """The plain kernels, which have no limit, on the vector whose gate and up go beyond 10 in 82 % of the values."""
    folder = captured("micro", golden=True).bundle.folder
    w, forwards, outputs = golden_inputs(VECTORS / "clamp_micro.npz")
    case = find("micro")
    x, weights, ids = forwards[0][0]
    contents = {f"r0.{FIELDS[k]}": t.numpy().tobytes() for k, t in shuffled(case, w, 0).items()}
    contents |= {
        "r0.quant.x": x.view(torch.int16).numpy().tobytes(),
        "r0.stage1.topk_weights": weights.numpy().tobytes(),
        "r0.stage1.topk_ids": ids.numpy().tobytes(),
    }
    answers = outputs if clamped else reference_outputs(case, w, forwards)
    planted = replaced(folder, tmp_path / "b", contents, {"forward0.rank0": answers[0][0].tobytes()})
    assert seen(planted) is clamped


def _zeroed(raw: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    raw[2][1].zero_()
    return raw


def _doubled(raw: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    raw[3][0].add_(1)
    return raw


@pytest.mark.parametrize(
    "change", [_zeroed, _doubled, lambda raw: tuple(t.flip(0) for t in raw)],
    ids=["one expert zeroed", "one expert's scales doubled", "two experts swapped"],
)  # fmt: skip
def test_one_wrong_expert_is_seen(folder: Path, tmp_path: Path, change: Change) -> None:
    assert seen(replaced(folder, tmp_path / "b", weights_of(change(raw_of(0)), 0)))


def test_the_right_weights_planted_the_same_way_are_accepted(folder: Path, tmp_path: Path) -> None:
    assert not seen(replaced(folder, tmp_path / "b", weights_of(raw_of(0), 0) | weights_of(raw_of(1), 1)))


ROUTING = {
    "routing weights ignored": ("topk_weights", lambda a: np.ones_like(a)),
    "last slot dropped": ("topk_weights", lambda a: a * np.array([1, 0], np.float32)),
    "routing weights in another order": ("topk_weights", lambda a: np.roll(a, 1, axis=1)),
    "ids off by one": ("topk_ids", lambda a: (a + 1) % 4),
}


@pytest.mark.parametrize(("field", "change"), ROUTING.values(), ids=ROUTING)
def test_wrong_routing_is_seen(
    folder: Path, tmp_path: Path, field: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    z = np.load(GOLDEN)
    array = z[f"{field}_r0"]
    assert seen(replaced(folder, tmp_path / "b", {f"r0.stage1.{field}": change(array).astype(array.dtype).tobytes()}))


def _stale(results: dict[str, np.ndarray]) -> None:
    results["forward0.rank0"][1024:2048] = results["forward0.rank0"][:1024]


def _tile(results: dict[str, np.ndarray]) -> None:
    results["forward0.rank1"].view(np.uint16)[3 * 512 + 32 : 3 * 512 + 96] = 0


def _nan(results: dict[str, np.ndarray]) -> None:
    results["forward0.rank1"].view(np.uint16)[5] = 0x7FC0


def _bit(results: dict[str, np.ndarray]) -> None:
    results["forward0.rank0"][77] ^= 1


def _nothing(results: dict[str, np.ndarray]) -> None:
    """The control."""


@pytest.mark.parametrize(
    ("spoil", "wrong"), [(_stale, True), (_tile, True), (_nan, True), (_bit, True), (_nothing, False)],
    ids=["a stale row", "one tile zero", "a NaN", "one bit", "nothing"],
)  # fmt: skip
def test_a_spoiled_result_is_seen(
    folder: Path, tmp_path: Path, spoil: Callable[[dict[str, np.ndarray]], None], wrong: bool
) -> None:
    run = Executor(Bundle.read(folder)).run()
    spoil(run.results)
    write_results(run, tmp_path)
    assert told(compare_only(folder, tmp_path)) is wrong
