"""Chooses the GPU pass for the scale layouts where it works, and says once why where it does not.

The scales are 6 % of a layer's bytes, and eager torch, which moves them one by one, spends a third of the conversion on
them. The pass gives the same bytes; it is asked to prove that on a small tensor before its first use.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch

log = logging.getLogger("megamoe_atom")
Move = Callable[..., None]


def transpose_scales(
    raw: torch.Tensor, out: torch.Tensor, *, per: int, stride: int, step: int, other: int, eager: Move
) -> None:
    """Writes the kernels' order of `raw` to `out`; arguments as in layout_triton.transpose.

    eager: (raw, out) -> None, the same move in plain torch: used on a CPU, for odd alignments, and where Triton fails.
    """
    aligned = raw.shape[-1] % 8 == 0 and raw.data_ptr() % 8 == 0 and out.data_ptr() % 8 == 0
    move = _proven(str(raw.device)) if raw.is_cuda and aligned and out.is_contiguous() else None
    if move is None:
        eager(raw, out)
    else:
        move(raw, out, per=per, stride=stride, step=step, other=other)


@functools.cache
def _proven(device: str) -> Move | None:
    """The GPU pass, when it compiles here and gives the right bytes; else None, with a line in the log."""
    try:
        from megamoe_atom.layout_triton import transpose

        why = _difference(transpose, device)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    if why:
        log.warning("scale layout on %s in plain torch (same result, slower conversion): %s", device, why)
        return None
    return transpose


def _difference(transpose: Move, device: str) -> str:
    """What is wrong with the pass on two experts of 64 rows and 24 scales each; "" when nothing is."""
    generator = torch.Generator().manual_seed(3)
    raw = torch.randint(0, 256, (2, 64, 24), generator=generator, dtype=torch.uint8).to(device)
    want = raw.view(2, 2, 2, 16, 3, 2, 4).permute(0, 2, 4, 6, 3, 5, 1).contiguous().view(raw.shape)
    got = torch.zeros_like(raw)
    transpose(raw, got, per=2, stride=64, step=16, other=32)
    wrong = int((got != want).sum())
    return f"its pass put {wrong} of {raw.numel()} bytes in the wrong place" if wrong else ""
