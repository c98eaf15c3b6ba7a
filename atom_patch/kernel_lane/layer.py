"""A case's layer as plain arrays: weights and inputs by formula or from a golden file, and what the reference
computes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from megamoe_atom import layout
from megamoe_atom.problem import Problem
from megamoe_atom.reference import MegaMoE, ReferenceGroup
from numpy.typing import NDArray

from kernel_lane import formula
from kernel_lane.capture.cases import Case

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # x bf16 [n, H], weights f32 [n, K], ids i32 [n, K]
Bits = NDArray[np.uint16]


def golden_inputs(path: Path) -> tuple[formula.Weights, list[list[Inputs]], list[list[Bits]]]:
    """Weights, inputs and outputs of a file that carries all of them (tests/golden/*.npz), as one forward.

    Raises:
        Problem: golden (exit 2), it is no such file.
    """
    try:
        with np.load(path) as z:
            w = formula.Weights(z["w13"], z["w13_scale_e8m0"], z["w2"], z["w2_scale_e8m0"])
            ranks = range(int(z["ep_size"]))
            rows = [(z[f"x_bf16_r{r}"], z[f"topk_weights_r{r}"], z[f"topk_ids_r{r}"]) for r in ranks]
            outputs = [z[f"out_bf16_r{r}"] for r in ranks]
    except (OSError, EOFError, KeyError, ValueError, TypeError, BadZipFile, zlib.error) as error:
        raise Problem(
            "golden",
            what=f"{path} is no golden file: {type(error).__name__} {error}",
            why="it must hold a layer's weights, inputs and outputs",
            fix="pass a file of tests/golden, not of tests/golden/formula, whose inputs come by formula",
        ) from error
    inputs = [(_bf16(x), torch.from_numpy(weights), torch.from_numpy(ids)) for x, weights, ids in rows]
    return w, [inputs], [outputs]


def of_case(case: Case, w: formula.Weights, forwards: Sequence[Sequence[Inputs]]) -> None:
    """Refuses a golden file whose layer is not the case's: the kernels would be built for other sizes.

    Raises:
        Problem: golden_case (exit 2).
    """
    experts, rows, packed = w.w13.shape
    inputs = [x for forward in forwards for x in forward]
    topk = {ids.shape[1] for _, _, ids in inputs}
    have = (len(forwards[0]), 2 * packed, rows // 2, experts, *topk, max(x.shape[0] for x, _, _ in inputs))
    want = (case.ranks, case.hidden, case.inter, case.experts, case.topk)
    if have[:-1] != want or have[-1] > case.mtpr:
        names = ("ranks", "hidden", "inter", "experts", "topk", "tokens")
        raise Problem(
            "golden_case",
            what=f"the golden file has {', '.join(f'{n} {v}' for n, v in zip(names, have, strict=True))}; the case "
            f"{case.name} has {', '.join(f'{n} {v}' for n, v in zip(names, (*want, case.mtpr), strict=True))}",
            why="the kernels are built for the case's sizes and would read another layer's weights",
            fix=f"pass tests/golden/{case.golden}.npz" if case.golden else "capture this case without --golden",
        )


def _bf16(bits: NDArray[np.uint16]) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)


def case_inputs(case: Case) -> tuple[formula.Weights, list[list[Inputs]]]:
    """Weights and, per forward and rank, the inputs of a case, by formula."""
    w = formula.weights(case.seed, case.experts, case.hidden, case.inter, case.scale_codes)
    forwards = []
    for k, forward in enumerate(case.forwards):
        rows = []
        for r, tokens in enumerate(forward.tokens):
            seed = case.seed + 1000 * (k + 1) + 10 * r + forward.seed
            ids, weights = formula.routing(forward.routing, seed + 1, tokens, case.experts, case.topk, case.ranks)
            x = formula.activations(forward.activation, seed, tokens, case.hidden)
            rows.append((_bf16(x), torch.from_numpy(weights), torch.from_numpy(ids)))
        forwards.append(rows)
    return w, forwards


def shuffled(case: Case, w: formula.Weights, rank: int) -> dict[str, torch.Tensor]:
    """One rank's weights in the kernels' layout, flat uint8, under the constructor's keywords."""
    epr = case.experts // case.ranks
    mine = slice(rank * epr, (rank + 1) * epr)
    gate_up = case.quant == "a8w4"
    raw = [torch.from_numpy(np.ascontiguousarray(a[mine])) for a in (w.w13, w.w13_scale, w.w2, w.w2_scale)]
    return {
        "w1": layout.shuffle_w13(raw[0], gate_up=gate_up).reshape(-1),
        "w1_scale": layout.shuffle_w13_scale(raw[1], gate_up=gate_up).reshape(-1),
        "w2": layout.shuffle_w2(raw[2]).reshape(-1),
        "w2_scale": layout.shuffle_w2_scale(raw[3]).reshape(-1),
    }


def reference_outputs(case: Case, w: formula.Weights, forwards: Sequence[Sequence[Inputs]]) -> list[list[Bits]]:
    """What the reference computes for each forward and rank, bf16 bits [n, H]."""
    group = ReferenceGroup(case.ranks)
    for r in range(case.ranks):
        mine: dict[str, Any] = {**shuffled(case, w, r)}
        MegaMoE(
            rank=r, world_size=case.ranks, model_dim=case.hidden, inter_dim=case.inter, experts=case.experts,
            topk=case.topk, quant=case.quant, max_tok_per_rank=case.mtpr, group=group, accumulate=torch.float64,
            swiglu_limit=case.swiglu_limit, **mine,
        )  # fmt: skip
    return [
        [o.clone().view(torch.int16).numpy().view(np.uint16) for o in group.forward([(x, i, t) for x, t, i in rows])]
        for rows in forwards
    ]
