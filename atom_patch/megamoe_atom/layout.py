"""The weight layouts that FlyDSL MegaMoE reads, and their inverses, on any torch device.

A checkpoint stores each expert's rows plainly ("raw"): w13 gate rows first, then up rows, two fp4 per byte (low nibble
first), one e8m0 byte per 32 values. The gfx950 kernels read them in the order in which a wave's 64 lanes consume
them ("shuffled"). Every function here is a bijection of bytes: no value changes.

Shapes (E experts of this rank, H hidden, I intermediate; all uint8):

    w13        raw [E, 2I, H/2]    shuffle_w13, unshuffle_w13               same shape out
    w13 scale  raw [E, 2I, H/32]   shuffle_w13_scale, unshuffle_w13_scale   same shape out (see gate_up=False)
    w2         raw [E, H, I/2]     shuffle_w2, unshuffle_w2                 same shape out
    w2 scale   raw [E, H, I/32]    shuffle_w2_scale, unshuffle_w2_scale     2-D [ceil256(E*H), ceil8(I/32)], pads 0

`gate_up=True` (a8w4) alternates blocks of gate and up rows; `gate_up=False` is the separated form (a4w4), in which
w13 is laid out like w2 and its scales like the scales of w2 (2-D and padded).

The weight layouts keep runs of 16 bytes together, so they are moved as 16-byte words: byte by byte an H200 reaches
15 % of a device copy's speed, in 16-byte words 90 to 100 %. The scale layouts mix single bytes; layout_gpu.py moves
them in one pass where Triton works.

Source: the formulas are those of FlyDSL 8acf56d, tests/kernels/utils/gemm_common_utils.py and tests/utils.py; this is
our own code, held to them by golden hashes and, where a checkout is given, byte for byte by tests/patch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch

from megamoe_atom.layout_gpu import transpose_scales
from megamoe_atom.problem import Exit, Problem

WORD_BYTES = 16
E8M0_NAN = 255
_TAG = "megamoe_layout"
"""Attribute that marks a tensor as converted; FlyDSL and aiter mark theirs `is_shuffled` in the same way."""


# ---- refusals ----------------------------------------------------------------------------------------------------


def _refuse(code: str, what: str, why: str, fix: str) -> NoReturn:
    raise Problem(code, exit_code=Exit.PRECONDITION, what=what, why=why, fix=fix)


def _check_bytes(t: torch.Tensor, name: str, ndim: int) -> None:
    """Refuses what the byte moves below would silently get wrong."""
    if not isinstance(t, torch.Tensor):
        _refuse(
            "layout_type",
            f"{name} is a {type(t).__name__}, not a tensor",
            "a layout is a permutation of a tensor's bytes",
            "pass the raw weight tensor",
        )
    if t.dtype != torch.uint8:
        _refuse(
            "layout_dtype",
            f"{name} has dtype {t.dtype}, expected torch.uint8",
            "two fp4 values share one byte and a scale is one e8m0 byte; another element size would be permuted "
            "in other units",
            f"pass {name}.view(torch.uint8) when the tensor holds packed bytes of that dtype",
        )
    if t.ndim != ndim:
        _refuse(
            "layout_rank",
            f"{name} has shape {tuple(t.shape)}, expected {ndim} dimensions",
            "the first dimension separates the experts",
            "pass the tensor of one rank, [experts, rows, columns]",
        )
    if t.numel() == 0:
        _refuse(
            "layout_empty",
            f"{name} has shape {tuple(t.shape)} and holds no bytes",
            "its raw bytes were released after an earlier conversion, or never loaded",
            "convert before the raw weights are released, and keep the converted tensors",
        )
    if not t.is_contiguous():
        _refuse(
            "layout_strides",
            f"{name} has shape {tuple(t.shape)} and strides {t.stride()}, so it is not contiguous",
            "the kernels address the bytes of a dense tensor",
            f"pass {name}.contiguous()",
        )


def _divides(value: int, by: int, what: str, name: str) -> None:
    if value % by:
        _refuse(
            "layout_shape",
            f"{name} has {what} = {value}, which is not a multiple of {by}",
            "the layout is made of whole blocks; a partial block has no place in it",
            "check the model's hidden and intermediate sizes; MegaMoE needs both divisible by 256",
        )


def check_scales(scale: torch.Tensor, name: str) -> None:
    """Refuses e8m0 scales that hold the NaN code 255 (waits for the device once).

    Raises:
        Problem: code "layout_nan_scale".
    """
    if scale.numel() and int(scale.amax()) == E8M0_NAN:
        at = (scale == E8M0_NAN).nonzero()
        _refuse(
            "layout_nan_scale",
            f"{name} holds the e8m0 code 255 (NaN) {len(at)} times, first at {tuple(at[0].tolist())}",
            "every value of such a block of 32 is NaN, and so is every output that uses it",
            "the checkpoint or its conversion is damaged: verify the shard's checksum and load it again",
        )


# ---- moving bytes ------------------------------------------------------------------------------------------------


def _last(t: torch.Tensor, n: int) -> torch.Tensor:
    """[..., m*n] -> [..., m, n]."""
    return t.view(*t.shape[:-1], t.shape[-1] // n, n)


def _words(t: torch.Tensor) -> torch.Tensor:
    """View [..., n*16] uint8 as [..., n, w]: w elements of the widest dtype that together hold 16 bytes.

    complex128 is used as an opaque 16-byte word: a copy moves its bits and does no arithmetic. A tensor that is not
    aligned to 16 bytes (a slice of a memory-mapped file) moves in 8-byte words or bytes instead.
    """
    address = t.data_ptr()
    for dtype, size in ((torch.complex128, 16), (torch.int64, 8)):
        if address % size == 0 and t.storage_offset() % size == 0:
            return _last(t.view(dtype), WORD_BYTES // size)
    return _last(t, WORD_BYTES)


def _same_words(src: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as words of one dtype (the narrower of the two alignments)."""
    a, b = _words(src), _words(out)
    if a.dtype != b.dtype:
        return _last(src, WORD_BYTES), _last(out, WORD_BYTES)
    return a, b


def _w13_view(words: torch.Tensor) -> torch.Tensor:
    """[E, 2I, P/16, w] raw -> [E, I/16, gate|up, P/64, 4, 16 rows, w]: the shuffled order as a view of raw."""
    e, n, p, w = words.shape
    return words.view(e, 2, n // 32, 16, p // 4, 4, w).permute(0, 2, 1, 4, 5, 3, 6)


def _rows_view(words: torch.Tensor) -> torch.Tensor:
    """[E, N, P/16, w] raw -> [E, N/16, P/16, 16 rows, w]: the order of w2 (and of a separated w13)."""
    e, n, p, w = words.shape
    return words.view(e, n // 16, 16, p, w).permute(0, 1, 3, 2, 4)


def _w13_scale_view(scale: torch.Tensor) -> torch.Tensor:
    """[E, 2I, kc] raw -> [E, I/16, kc/8, 4, 16 rows, 2, gate|up]."""
    e, n, kc = scale.shape
    return scale.view(e, 2, n // 32, 16, kc // 8, 2, 4).permute(0, 2, 4, 6, 3, 5, 1)


def _rows_scale_view(scale: torch.Tensor) -> torch.Tensor:
    """[M, N] padded raw -> [M/32, N/8, 4, 16 rows, 2, 2 halves of 16 rows]."""
    m, n = scale.shape
    return scale.view(m // 32, 2, 16, n // 8, 2, 4).permute(0, 3, 5, 2, 4, 1)


def _weights(src: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor], *, inverse: bool) -> torch.Tensor:
    out = torch.empty_like(src)
    a, b = _same_words(src, out)
    if inverse:
        raw_order = view(b)
        raw_order.copy_(a.view(raw_order.shape))
    else:
        shuffled_order = view(a)
        b.view(shuffled_order.shape).copy_(shuffled_order)
    return out


def _bytes(
    src: torch.Tensor, out: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor], *, inverse: bool
) -> None:
    if inverse:
        raw_order = view(out)
        raw_order.copy_(src.view(raw_order.shape))
    else:
        shuffled_order = view(src)
        out.view(shuffled_order.shape).copy_(shuffled_order)


# ---- w13 ---------------------------------------------------------------------------------------------------------


def _check_w13(t: torch.Tensor, name: str, *, gate_up: bool) -> None:
    _check_bytes(t, name, 3)
    if gate_up:
        _divides(t.shape[1], 32, "gate and up rows", name)
        _divides(t.shape[2], 64, "bytes per row", name)
    else:
        _divides(t.shape[1], 16, "rows", name)
        _divides(t.shape[2], 32, "bytes per row", name)


def shuffle_w13(raw: torch.Tensor, *, gate_up: bool = True) -> torch.Tensor:
    """Raw w13 [E, 2I, H/2] uint8 (gate rows first) to the kernels' order, same shape.

    Args:
        raw: contiguous; I % 16 == 0 and H % 128 == 0 (gate_up), else rows % 16 == 0 and H % 64 == 0.
        gate_up: True alternates 16 gate rows and 16 up rows (a8w4); False keeps them separated (a4w4).
    Raises:
        Problem: codes layout_dtype, layout_rank, layout_shape, layout_strides, layout_empty.
    """
    _check_w13(raw, "w13", gate_up=gate_up)
    return _weights(raw, _w13_view if gate_up else _rows_view, inverse=False)


def unshuffle_w13(shuffled: torch.Tensor, *, gate_up: bool = True) -> torch.Tensor:
    """Inverse of shuffle_w13: [E, 2I, H/2] in the kernels' order to raw, same shape."""
    _check_w13(shuffled, "w13", gate_up=gate_up)
    return _weights(shuffled, _w13_view if gate_up else _rows_view, inverse=True)


def shuffle_w13_scale(raw: torch.Tensor, *, gate_up: bool = True) -> torch.Tensor:
    """Raw e8m0 scales of w13 [E, 2I, H/32] to the kernels' order.

    Returns:
        gate_up=True: the same shape (2I % 32 == 0, H % 256 == 0). gate_up=False: 2-D, padded, as shuffle_w2_scale.
    """
    if not gate_up:
        return shuffle_w2_scale(raw, name="w13 scale")
    _check_bytes(raw, "w13 scale", 3)
    _divides(raw.shape[1], 32, "gate and up rows", "w13 scale")
    _divides(raw.shape[2], 8, "scales per row", "w13 scale")
    out = torch.empty_like(raw)
    rows = raw.shape[1]
    transpose_scales(
        raw, out, per=rows // 32, stride=rows, step=16, other=rows // 2,
        eager=lambda src, dst: _bytes(src, dst, _w13_scale_view, inverse=False),
    )  # fmt: skip
    return out


def unshuffle_w13_scale(
    shuffled: torch.Tensor, *, gate_up: bool = True, shape: tuple[int, int, int] | None = None
) -> torch.Tensor:
    """Inverse of shuffle_w13_scale; the separated form needs the raw `shape` because its pads are dropped."""
    if not gate_up:
        if shape is None:
            _refuse(
                "layout_shape",
                "the separated w13 scales were given without their raw shape",
                "they are padded, and the pads must be dropped",
                "pass shape=(experts, 2*inter, hidden//32)",
            )
        return unshuffle_w2_scale(shuffled, shape, name="w13 scale")
    _check_bytes(shuffled, "w13 scale", 3)
    _divides(shuffled.shape[1], 32, "gate and up rows", "w13 scale")
    _divides(shuffled.shape[2], 8, "scales per row", "w13 scale")
    raw = torch.empty_like(shuffled)
    _bytes(shuffled, raw, _w13_scale_view, inverse=True)
    return raw


# ---- w2 ----------------------------------------------------------------------------------------------------------


def _check_w2(t: torch.Tensor, name: str) -> None:
    _check_bytes(t, name, 3)
    _divides(t.shape[1], 16, "rows", name)
    _divides(t.shape[2], 32, "bytes per row", name)


def shuffle_w2(raw: torch.Tensor) -> torch.Tensor:
    """Raw w2 [E, H, I/2] uint8 to the kernels' order, same shape. H % 16 == 0 and I % 64 == 0."""
    _check_w2(raw, "w2")
    return _weights(raw, _rows_view, inverse=False)


def unshuffle_w2(shuffled: torch.Tensor) -> torch.Tensor:
    """Inverse of shuffle_w2, same shape."""
    _check_w2(shuffled, "w2")
    return _weights(shuffled, _rows_view, inverse=True)


def w2_scale_shape(shape: tuple[int, int, int] | torch.Size) -> tuple[int, int]:
    """Shape of the shuffled w2 scales of raw [E, H, I/32]: [ceil256(E*H), ceil8(I/32)]."""
    experts, rows, columns = shape
    return -(-experts * rows // 256) * 256, -(-columns // 8) * 8


def shuffle_w2_scale(raw: torch.Tensor, *, name: str = "w2 scale") -> torch.Tensor:
    """Raw e8m0 scales of w2 [E, H, I/32] to the kernels' order: 2-D [ceil256(E*H), ceil8(I/32)].

    Pads are written as 0. FlyDSL leaves them uninitialised, which makes two conversions of one checkpoint differ.
    """
    _check_bytes(raw, name, 3)
    m, n = w2_scale_shape(raw.shape)
    rows = raw.flatten(0, 1)
    if rows.shape != (m, n):
        padded = rows.new_zeros((m, n))
        padded[: rows.shape[0], : rows.shape[1]] = rows
        rows = padded
    out = torch.empty_like(rows)
    transpose_scales(
        rows, out, per=m // 32, stride=0, step=32, other=16,
        eager=lambda src, dst: _bytes(src, dst, _rows_scale_view, inverse=False),
    )  # fmt: skip
    return out


def unshuffle_w2_scale(
    shuffled: torch.Tensor, shape: tuple[int, int, int] | torch.Size, *, name: str = "w2 scale"
) -> torch.Tensor:
    """Inverse of shuffle_w2_scale.

    Args:
        shuffled: [ceil256(E*H), ceil8(I/32)] uint8, or the same bytes 1-D.
        shape: the raw shape (E, H, I/32).
    Returns:
        [E, H, I/32] uint8, pads dropped.
    """
    m, n = w2_scale_shape(shape)
    if shuffled.numel() != m * n:
        _refuse(
            "layout_shape",
            f"{name} holds {shuffled.numel()} bytes, expected {m} x {n} = {m * n} for {tuple(shape)}",
            "the shuffled scales are padded to 256 rows and 8 columns",
            "pass what shuffle_w2_scale returned",
        )
    flat = shuffled.reshape(m, n)
    _check_bytes(flat, name, 2)
    raw = torch.empty_like(flat)
    _bytes(flat, raw, _rows_scale_view, inverse=True)
    experts, rows, columns = shape
    return raw[: experts * rows, :columns].reshape(experts, rows, columns)


# ---- a whole layer -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConvertedLayer:
    """One layer's weights as MegaMoE takes them: four 1-D uint8 tensors.

    The raw shapes are kept, since a 1-D tensor no longer tells them: w13_shape [E, 2I, H/2], w2_shape [E, H, I/2].
    """

    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    w13_shape: tuple[int, int, int]
    w2_shape: tuple[int, int, int]
    gate_up: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """Put on the four tensors of one conversion: one object for all four, so that a mixed set is noticed.

    It holds no tensor. If it did, every layer would be a reference cycle, and 1.7 GB of device memory would wait for
    Python's collector.
    """

    w13_shape: tuple[int, int, int]
    w2_shape: tuple[int, int, int]
    gate_up: bool


def mark_of(t: torch.Tensor) -> Mark | None:
    """The mark of a converted tensor object (an attribute, as upstream marks its own), None for a raw one."""
    return getattr(t, _TAG, None)


def _check_layer(
    w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor, *, gate_up: bool
) -> None:
    _check_w13(w13, "w13", gate_up=gate_up)
    _check_w2(w2, "w2")
    _check_bytes(w13_scale, "w13 scale", 3)
    _check_bytes(w2_scale, "w2 scale", 3)
    experts, rows, packed = w13.shape
    inter, hidden = rows // 2, packed * 2
    expected = {
        "w13 scale": (w13_scale, (experts, rows, hidden // 32)),
        "w2": (w2, (experts, hidden, inter // 2)),
        "w2 scale": (w2_scale, (experts, hidden, inter // 32)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            _refuse(
                "layout_mismatch",
                f"{name} has shape {tuple(tensor.shape)}, but w13 {tuple(w13.shape)} "
                f"(experts={experts}, inter={inter}, hidden={hidden}) asks for {shape}",
                "weights and scales of one layer must describe the same experts, or values meet a wrong scale",
                "pass the four tensors of one layer and one rank, not padded and not sliced",
            )
        if tensor.device != w13.device:
            _refuse(
                "layout_device",
                f"{name} is on {tensor.device}, w13 on {w13.device}",
                "the kernels read all four from one GPU",
                "load the whole layer onto the rank's device",
            )
    if gate_up:
        _divides(hidden // 32, 8, "scales per row", "w13 scale")


def _weights_in_place(raw: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor], chunk: int) -> torch.Tensor:
    """Shuffles [E, ...] in place, `chunk` experts at a time through one buffer of that many experts."""
    buffer = torch.empty_like(raw[: min(chunk, raw.shape[0])])
    a, b = _same_words(raw, buffer)
    shuffled_order = view(a)
    target = b.view(b.shape[0], *shuffled_order.shape[1:])
    for first in range(0, raw.shape[0], chunk):
        part = raw[first : first + chunk]
        target[: len(part)].copy_(shuffled_order[first : first + chunk])
        part.copy_(buffer[: len(part)])
    return raw


def _scales_in_place(raw: torch.Tensor, shuffle: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """All at once: a layer's scales of one kind are less than four experts' weights. Pads need other memory."""
    shuffled = shuffle(raw)
    if shuffled.numel() != raw.numel():
        return shuffled
    raw.view(shuffled.shape).copy_(shuffled)
    return raw


def convert_layer_tensors(
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    *,
    gate_up: bool = True,
    in_place: bool = False,
    chunk_experts: int = 8,
    nan_check: bool = True,
) -> ConvertedLayer:
    """Raw weights of one layer and rank to what MegaMoE takes. Calling it again with its own result returns that.

    ATOM calls its weight hook twice (once per loader pass), hence the idempotence.

    Args:
        w13, w13_scale, w2, w2_scale: raw, shapes as in the module's docstring, uint8, contiguous, one device.
        gate_up: interleaved (a8w4) or separated (a4w4) w13.
        in_place: reuse the raw tensors' memory; the extra memory is `chunk_experts` experts of w13, or all scales of
            w13 if those are more. Scales whose shape needs pads are converted out of place all the same.
        chunk_experts: experts per step of the in-place mode, at least 1.
        nan_check: refuse e8m0 code 255 (reads all scales once and waits for the device).
    Raises:
        Problem: the layout_* codes. Everything is checked before the first byte moves, so a refusal leaves the
            raw tensors as they were.
    """
    marks = [mark_of(t) for t in (w13, w13_scale, w2, w2_scale)]
    mark = marks[0]
    if any(m is not mark for m in marks):
        _refuse(
            "layout_twice",
            "some of the four tensors are converted and some are raw, or they are of two layers",
            "converting a tensor twice scrambles it",
            "pass four raw tensors, or the four results of one conversion",
        )
    if mark is not None:
        if mark.gate_up != gate_up:
            _refuse(
                "layout_twice",
                f"the layer was converted with gate_up={mark.gate_up}, now gate_up={gate_up}",
                "a converted layer cannot be converted to the other form; its bytes would be scrambled",
                "use one form per process: interleaved for a8w4, separated for a4w4",
            )
        return ConvertedLayer(w13, w13_scale, w2, w2_scale, mark.w13_shape, mark.w2_shape, mark.gate_up)
    if chunk_experts < 1:
        _refuse(
            "layout_chunk",
            f"chunk_experts={chunk_experts}",
            "at least one expert moves per step",
            "pass chunk_experts >= 1",
        )
    _check_layer(w13, w13_scale, w2, w2_scale, gate_up=gate_up)
    if nan_check:
        check_scales(w13_scale, "w13 scale")
        check_scales(w2_scale, "w2 scale")

    mark = Mark(
        (int(w13.shape[0]), int(w13.shape[1]), int(w13.shape[2])),
        (int(w2.shape[0]), int(w2.shape[1]), int(w2.shape[2])),
        gate_up,
    )

    def w13_scale_move(t: torch.Tensor) -> torch.Tensor:
        return shuffle_w13_scale(t, gate_up=gate_up)

    if in_place:
        moved = (
            _weights_in_place(w13, _w13_view if gate_up else _rows_view, chunk_experts),
            _scales_in_place(w13_scale, w13_scale_move),
            _weights_in_place(w2, _rows_view, chunk_experts),
            _scales_in_place(w2_scale, shuffle_w2_scale),
        )
    else:
        moved = (
            shuffle_w13(w13, gate_up=gate_up),
            w13_scale_move(w13_scale),
            shuffle_w2(w2),
            shuffle_w2_scale(w2_scale),
        )
    # detach(): a view of a Parameter is a new tensor object that can carry the mark, and wants no gradient.
    flat = [t.detach().reshape(-1) for t in moved]
    for tensor in flat:
        setattr(tensor, _TAG, mark)
    return ConvertedLayer(flat[0], flat[1], flat[2], flat[3], mark.w13_shape, mark.w2_shape, mark.gate_up)


def release(*tensors: torch.Tensor) -> None:
    """Empties the raw tensors of a converted layer, scales too; what was converted in place keeps their memory.

    The attributes must stay: ATOM still reads layer.w13_weight and its scales. So each keeps its object and dtype.
    """
    for t in tensors:
        t.data = torch.empty(0, dtype=t.dtype, device=t.device)
