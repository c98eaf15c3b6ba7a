"""What a kernel that is captured alone must compute: its inputs by formula, its outputs by definition.

The quantiser is held to the adapter's own arithmetic (megamoe_atom.quant). The sort is defined here, from what its
callers rely on:

* Expert after expert, the (token, slot) pairs of an expert by rising token, as slot << 24 | token, with their weights;
  behind them padding to whole blocks of `unit` rows: topk << 24 | tokens, weight 0.
* For each block the expert's number among this rank's experts. Experts that the mask leaves out have no rows.
* num_valid = [rows with padding, tokens]; the layer's output is zeroed; rows and blocks beyond are left alone.
"""

from __future__ import annotations

import numpy as np
import torch
from megamoe_atom.quant import decode_fp4, quantize_activation
from numpy.typing import NDArray

from kernel_lane import formula
from kernel_lane.capture.parts import Quant, Sort

UNTOUCHED = 0x5A  # every byte of an output before the kernel runs, so that a byte left alone is told from one written


def quant_input(part: Quant) -> torch.Tensor:
    """bf16 [rows, columns]: groups of 32 scaled by 2^-8 .. 2^7, and by hand the groups where the rule could differ."""
    x = formula.bell(600, part.rows, part.columns).reshape(-1, 32)
    x = np.ldexp(x, np.arange(x.shape[0])[:, None] % 16 - 8).astype(np.float32)
    largest = {"fp8": 448.0, "fp4": 6.0}[part.form]
    just = np.float32(largest * (1 + 2.0**-7))  # the next in bf16, with its 7 bits of mantissa
    edge = np.array([0.0, -0.0, 448.0, 449.0, 450.0, largest, just, 1e-10, 2.0**-133, -3.3e38], np.float32)
    for k, value in enumerate(edge):  # alone in its group, then as the largest of a group
        x[k] = 0
        x[k, 3 * k] = value
        x[16 + k] = np.clip(x[16 + k], -1, 1) * np.abs(value)
        x[16 + k, 31 - k] = value
    x[40] = np.arange(32, dtype=np.float32) / 4 - 4  # fp4 values, their midpoints and what lies between, both signs
    x[41] = -x[40]
    every = _every_code(part.form)
    x[48 : 48 + len(every)] = every
    bits = formula.bf16_bits(x).reshape(part.rows, part.columns)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def _every_code(form: str) -> NDArray[np.float32]:
    """[groups, 32]: every value of the form (fp4: every pair of neighbours), under scale 1 by each group's largest."""
    if form == "fp4":
        values = decode_fp4(torch.arange(256, dtype=torch.uint8)).numpy()
        return np.asarray(values, np.float32).reshape(-1, 32)
    codes = [c for c in range(256) if c & 0x7F != 0x7F]
    values = torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    rows = np.full((9, 32), 448, np.float32)
    rows[:, :31] = np.resize(values, (9, 31))
    return rows


def quant_outputs(part: Quant) -> dict[str, bytes]:
    """payload and scale, all bytes."""
    payload, scale = quantize_activation(quant_input(part), part.form)
    return {"payload": payload.view(torch.uint8).numpy().tobytes(), "scale": scale.numpy().tobytes()}


def sort_inputs(part: Sort) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(expert ids [tokens, topk], weights of the same shape)."""
    return formula.routing(part.routing, part.seed, part.tokens, part.experts, part.topk, 1)


def sort_sizes(part: Sort) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """The outputs that the caller allocates, for the worst routing, plus one block that no routing reaches."""
    blocks = (part.tokens * part.topk + part.unit - 1) // part.unit + part.experts + 1
    rows = blocks * part.unit
    return {
        "token_ids": ((rows,), torch.int32),
        "weights": ((rows,), torch.float32),
        "expert_ids": ((blocks,), torch.int32),
        "num_valid": ((2,), torch.int32),
        "output": ((part.tokens, part.columns), torch.bfloat16),
    }


def sort_outputs(part: Sort) -> dict[str, bytes]:
    """Every byte of the five outputs."""
    ids, weights = sort_inputs(part)
    mask = part.mask or (1,) * part.experts
    rows: list[int] = []
    row_weights: list[float] = []
    blocks: list[int] = []
    mine = [e for e in range(part.experts) if mask[e]]
    for number, expert in enumerate(mine):
        pairs = [(t, s) for t in range(part.tokens) for s in range(part.topk) if ids[t, s] == expert]
        padding = -len(pairs) % part.unit
        rows += [s << 24 | t for t, s in pairs] + [part.topk << 24 | part.tokens] * padding
        row_weights += [weights[p] for p in pairs] + [0.0] * padding
        blocks += [number] * ((len(pairs) + padding) // part.unit)
    written: dict[str, NDArray[np.generic]] = {
        "token_ids": np.array(rows, np.int32),
        "weights": np.array(row_weights, np.float32),
        "expert_ids": np.array(blocks, np.int32),
        "num_valid": np.array([len(rows), part.tokens], np.int32),
        "output": np.zeros(part.tokens * part.columns, np.uint16),
    }
    out = {}
    for name, (shape, dtype) in sort_sizes(part).items():
        size = int(np.prod(shape)) * dtype.itemsize
        out[name] = written[name].tobytes().ljust(size, bytes([UNTOUCHED]))
    return out
