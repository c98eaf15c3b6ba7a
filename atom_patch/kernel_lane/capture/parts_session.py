"""Captures one kernel's host entry point alone: real launches, expectations by definition."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from megamoe_atom.problem import Problem

from kernel_lane import parts_definition as definition
from kernel_lane.capture.parts import Part, Quant, Sort
from kernel_lane.capture.session import Session, figures

Outputs = dict[str, torch.Tensor]


def capture_part(part: Part, flydsl: Path, folder: Path, *, golden: Path | None = None) -> dict[str, Any]:
    """Captures a part as a bundle whose expectations cover every byte of its outputs.

    Returns:
        figures, as of a layer.
    Raises:
        Problem: golden_case (exit 2): golden files hold layers.
    """
    if golden is not None:
        raise Problem(
            "golden_case",
            what=f"{golden} holds a layer; the case {part.name} is one kernel",
            why="its inputs come by formula and its outputs by definition",
            fix="capture this case without --golden",
        )
    session = Session(flydsl, 1, part.cu)
    wanted = definition.quant_outputs(part) if isinstance(part, Quant) else definition.sort_outputs(part)
    equal: list[bool] = []

    def work() -> None:
        outputs = _quant(part) if isinstance(part, Quant) else _sort(part)
        for name, tensor in outputs.items():
            have = tensor.contiguous().view(torch.uint8).numpy().tobytes()
            equal.append(have == wanted[name])
            session.recorder.expect(name, tensor, wanted[name], str(tensor.dtype).removeprefix("torch."))

    session.run([work])
    provenance = asdict(part) | figures(session, all(equal))
    session.recorder.save(folder, provenance, 1)
    return provenance


def _quant(part: Quant) -> Outputs:
    entry: Callable[..., Any] = importlib.import_module("kernels.mega_moe.quant").per_1x32_mx_quant
    payload, scale = entry(definition.quant_input(part).clone(), quant_mode=part.form)
    return {"payload": payload.view(torch.uint8), "scale": scale}


def _sort(part: Sort) -> Outputs:
    entry: Callable[..., Any] = importlib.import_module("kernels.moe.moe_sorting_kernel").moe_sorting_flydsl
    # Clones, since the memory behind from_numpy is numpy's.
    ids, weights = (torch.from_numpy(a).clone() for a in definition.sort_inputs(part))
    out = {
        name: torch.full((*shape[:-1], shape[-1] * dtype.itemsize), definition.UNTOUCHED, dtype=torch.uint8).view(dtype)
        for name, (shape, dtype) in definition.sort_sizes(part).items()
    }
    mask = None if part.mask is None else torch.tensor(part.mask, dtype=torch.int32)
    entry(ids, weights, *out.values(), part.experts, part.unit, expert_mask=mask)
    return out
