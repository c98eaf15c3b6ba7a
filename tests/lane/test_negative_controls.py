"""Every fault that the adapter's self-test knows, planted under the executed kernels, is seen by the lane's check."""

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
from kernel_lane.execute import Executor, read_results, write_results
from kernel_lane.formula import Weights
from kernel_lane.judge import compare
from kernel_lane.layer import golden_inputs, shuffled
from megamoe_atom.selftest import VARIANTS

pytestmark = [pytest.mark.checkout, pytest.mark.slow]
GOLDEN = Path(__file__).parents[1] / "golden" / "w2.npz"
CASE = find("w2")
FIELDS = {"w1": "s1_w1", "w1_scale": "s1_w1_scale", "w2": "w2", "w2_scale": "w2_scale"}
Change = Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]


@pytest.fixture(scope="module")
def folder(captured) -> Path:  # type: ignore[no-untyped-def]
    path: Path = captured("w2", golden=True).bundle.folder
    return path


def replaced(folder: Path, to: Path, contents: dict[str, bytes]) -> Bundle:
    """The bundle with other initial content in some buffers."""
    shutil.copytree(folder, to)
    body = json.loads((to / "bundle.json").read_text())
    names = {b["name"]: b for b in body["buffers"]}
    for name, content in contents.items():
        assert len(content) == names[name]["bytes"], name
        (to / "data" / f"planted-{name}.bin").write_bytes(content)
        names[name]["init"] = {"file": f"data/planted-{name}.bin"}
    (to / "bundle.json").write_text(json.dumps(body))
    return Bundle.read(to)


def seen(bundle: Bundle) -> bool:
    run = Executor(bundle).run()
    return bool(run.stop or compare(bundle, run.results))


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


@pytest.mark.parametrize("spoil", [_stale, _tile, _nan], ids=["a stale row", "one tile zero", "a NaN"])
def test_a_spoiled_result_is_seen(folder: Path, tmp_path: Path, spoil: Callable[[dict[str, np.ndarray]], None]) -> None:
    bundle = Bundle.read(folder)
    run = Executor(bundle).run()
    spoil(run.results)
    write_results(run, tmp_path)
    assert compare(bundle, read_results(bundle, tmp_path))
