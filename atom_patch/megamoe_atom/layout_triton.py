"""The scale layouts as one GPU pass: a transpose of 4 x 4 bytes per 16, in Triton. Imported by layout_gpu.py only.

A block is 32 rows of scales: 16 of one half (gate, or rows 0 to 15) and 16 of the other (up, or rows 16 to 31). Eight
neighbouring scales of a row are one 64-bit word; four 32-bit words of the result take their bytes from one such word
of each half: [half, kp, kl] becomes [kl, kp, half].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _transpose(src, dst, per, stride, step, other, words, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0).to(tl.int64)
    row = (block // per) * stride + (block % per) * step + tl.arange(0, 16)[:, None]
    word = tl.arange(0, WIDTH)[None, :]
    inside = word < words
    # Triton reads along `word` and writes along the rows, each in whole lines, and turns the tile in shared memory.
    low = tl.load(src + row * words + word, mask=inside, other=0)
    high = tl.load(src + (row + other) * words + word, mask=inside, other=0)
    first = dst + (block * words + word) * 64 + tl.arange(0, 16)[:, None]
    for kl in tl.static_range(4):
        a, b = low >> (8 * kl), high >> (8 * kl)
        value = (a & 255) | ((b & 255) << 8) | (((a >> 32) & 255) << 16) | (((b >> 32) & 255) << 24)
        tl.store(first + 16 * kl, value.to(tl.int32), mask=inside)


def transpose(raw: torch.Tensor, out: torch.Tensor, *, per: int, stride: int, step: int, other: int) -> None:
    """raw, out: contiguous uint8 on one GPU, rows of a multiple of 8 scales, aligned to 8 bytes, not overlapping.

    Block b starts at row (b // per) * stride + (b % per) * step; its other half starts `other` rows later.
    """
    words = raw.shape[-1] // 8
    blocks = raw.numel() // (256 * words)
    _transpose[(blocks,)](
        raw.view(torch.int64), out.view(torch.int32), per, stride, step, other, words,
        WIDTH=triton.next_power_of_2(words), num_warps=4,
    )  # fmt: skip
