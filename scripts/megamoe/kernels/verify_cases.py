"""What the GPUs are asked to compute, and the answer: golden vectors, and layers made by formula.

The golden vectors (tests/golden) are inputs and outputs of the compiled kernels as executed on a CPU. Layers by formula
cover what no vector covers on W ranks (compact dispatch, a SwiGLU limit); their answer is the adapter's reference in
float64, which equals every golden vector bit for bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from megamoe_atom.problem import Exit, Problem

RAW = ("w13", "w13_scale_e8m0", "w2", "w2_scale_e8m0")
TILES = {"tile_m": 64, "tile_n": 256, "gemm2_tile_m": 32, "gemm2_tile_n": 128, "gemm2_tile_k": 128}
"""Tiles of the captured kernels; the tuning table has no row for layers as small as these."""
Array = npt.NDArray[Any]


@dataclass(slots=True)
class Case:
    """One layer on W ranks and the forwards that it runs.

    raw: the four weight tensors of all experts, uint8, as in a checkpoint. forwards: distinct inputs, each a list over
    ranks of (x bf16 bits [n, H] uint16, ids [n, K] int32, weights [n, K] float32). order: which of them runs when.
    expected: per forward and rank bf16 bits [n, H] uint16.
    """

    name: str
    ranks: int
    mtpr: int
    swiglu_limit: float
    raw: dict[str, Array]
    forwards: list[list[tuple[Array, Array, Array]]]
    order: list[int] = field(default_factory=lambda: [0])
    expected: list[list[Array]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(hidden, inter, experts, topk)."""
        experts, rows, packed = self.raw["w13"].shape
        return packed * 2, rows // 2, experts, self.forwards[0][0][1].shape[1]


def golden_case(path: Path) -> Case:
    """One file of tests/golden.

    Raises:
        Problem: golden_file (unreadable, or not one of ours).
    """
    try:
        with np.load(path) as z:
            ranks = int(z["ep_size"])
            inputs = [(z[f"x_bf16_r{r}"], z[f"topk_ids_r{r}"], z[f"topk_weights_r{r}"]) for r in range(ranks)]
            limit = float(z["swiglu_limit"]) if "swiglu_limit" in z else 0.0
            raw = {name: z[name] for name in RAW}
            expected = [z[f"out_bf16_r{r}"] for r in range(ranks)]
            return Case(f"golden {path.stem}", ranks, int(z["mtpr"]), limit, raw, [inputs], [0], [expected])
    except (OSError, EOFError, KeyError, ValueError, BadZipFile, zlib.error) as error:
        raise Problem(
            "golden_file",
            what=f"{path} is no golden vector: {error}",
            why="the GPUs' answer is compared with it",
            fix="restore tests/golden from the repository",
            exit_code=Exit.PRECONDITION,
        ) from error


def formula_case(
    name: str,
    *,
    ranks: int,
    experts: int,
    topk: int,
    mtpr: int = 16,
    limit: float = 0.0,
    forwards: int = 1,
    runs: int = 1,
) -> Case:
    """A layer of hidden 512 and inter 256 with seeded weights, and `forwards` inputs whose routing differs.

    Scale codes of w13 reach so high that a good part of gate and up lies beyond a limit of 10. runs: how many forwards
    are run (at least once each), in a seeded order in which every input comes about equally often.
    """
    rng = np.random.default_rng(20261202)
    hidden, inter = 512, 256
    raw = {
        "w13": rng.integers(0, 256, (experts, 2 * inter, hidden // 2), dtype=np.uint8),
        "w13_scale_e8m0": rng.integers(120, 126, (experts, 2 * inter, hidden // 32), dtype=np.uint8),
        "w2": rng.integers(0, 256, (experts, hidden, inter // 2), dtype=np.uint8),
        "w2_scale_e8m0": rng.integers(120, 126, (experts, hidden, inter // 32), dtype=np.uint8),
    }
    inputs = []
    for _ in range(forwards):
        row = []
        for _rank in range(ranks):
            tokens = int(rng.integers(1, mtpr + 1))
            x = rng.standard_normal((tokens, hidden)).astype(np.float32)
            ids = np.stack([rng.permutation(experts)[:topk] for _ in range(tokens)]).astype(np.int32)
            weights = rng.uniform(0.05, 1.0, (tokens, topk)).astype(np.float32)
            row.append(((x.view(np.uint32) >> 16).astype(np.uint16), ids, weights))
        inputs.append(row)
    runs = max(runs, forwards)
    order = [int(n) for n in np.concatenate([rng.permutation(forwards) for _ in range(-(-runs // forwards))])[:runs]]
    return Case(name, ranks, mtpr, limit, raw, inputs, order)


def with_answers(case: Case) -> Case:
    """Fills `expected` from the reference in float64, for cases that bring none."""
    if case.expected:
        return case
    import torch
    from megamoe_atom.reference import ReferenceGroup

    torch.set_num_threads(1)
    group = ReferenceGroup(case.ranks)
    for rank in range(case.ranks):
        build_reference(case, rank, group)
    for forward in case.forwards:
        rows = [(bf16(x), torch.from_numpy(ids), torch.from_numpy(w)) for x, ids, w in forward]
        case.expected.append([bits(out) for out in group.forward(rows)])
    return case


def bf16(bits_: Array) -> Any:
    import torch

    return torch.from_numpy(bits_.astype(np.int16, copy=True).view(np.int16)).view(torch.bfloat16)


def bits(out: Any) -> Array:
    import torch

    array: Array = out.detach().cpu().contiguous().view(torch.int16).numpy().view(np.uint16).copy()
    return array


def arguments(case: Case, rank: int, device: str) -> dict[str, Any]:
    """Keywords of MegaMoE's constructor, with this rank's converted weights on `device`, as the adapter passes them."""
    import torch
    from megamoe_atom.experts import Geometry
    from megamoe_atom.layout import convert_layer_tensors

    hidden, inter, experts, topk = case.shape
    mine = slice(rank * experts // case.ranks, (rank + 1) * experts // case.ranks)
    raw = [torch.from_numpy(case.raw[name][mine].copy()).to(device) for name in RAW]
    layer = convert_layer_tensors(*raw, gate_up=True)
    geometry = Geometry(rank, case.ranks, hidden, inter, experts, topk, "a8w4", case.mtpr, case.swiglu_limit)
    return geometry.kernel_arguments(layer) | TILES


def build_reference(case: Case, rank: int, group: Any) -> Any:
    """The stand-in class on the CPU; float64 sums make it bit-equal to the kernels as executed."""
    import torch
    from megamoe_atom.reference import MegaMoE

    return MegaMoE(**arguments(case, rank, "cpu"), group=group, accumulate=torch.float64)


def cases_for(ranks: int, golden: Path, *, clamp: bool, runs: int) -> list[Case]:
    """What a node of `ranks` GPUs is asked: its golden vectors, compact dispatch, the limit, and changing routing.

    clamp: whether the kernels take a SwiGLU limit. runs: forwards of the changing-routing case. Layers by formula come
    without their answers (with_answers).
    Raises:
        Problem: golden_missing.
    """
    files = sorted(golden.glob("*.npz"))
    if not files:
        raise Problem(
            "golden_missing",
            what=f"{golden} holds no golden vector (*.npz)",
            why="there is nothing to compare the GPUs with",
            fix="pass --golden DIR, or install from a complete checkout",
            exit_code=Exit.PRECONDITION,
        )
    # More than 64 experts on a rank select compact dispatch, whatever the tokens.
    made = [
        formula_case(
            "changing routing",
            ranks=ranks,
            experts=4 * ranks,
            topk=min(3, 4 * ranks),
            forwards=min(10, runs),
            runs=runs,
        ),
        formula_case("compact dispatch", ranks=ranks, experts=65 * ranks, topk=4, forwards=2, runs=6),
    ]
    if clamp:
        made.append(formula_case("limit 10", ranks=ranks, experts=4 * ranks, topk=3, limit=10.0, forwards=2, runs=6))
    vectors = [c for c in map(golden_case, files) if c.ranks == ranks and (clamp or not c.swiglu_limit)]
    return list(_distinct(vectors + made))


def _distinct(cases: Iterable[Case]) -> list[Case]:
    """One case per name; a vector of compact dispatch on few experts would only repeat its fixed-slot twin here."""
    return [c for c in cases if not (c.name.startswith("golden") and c.name.endswith("_compact"))]
