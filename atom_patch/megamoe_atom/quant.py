"""Number formats of MegaMoE: fp4 e2m1 and fp8 e4m3fn values under e8m0 scales, one scale per 32 values.

Two rules choose a scale, and they differ on purpose (both are the kernels', executed bit for bit, see tests/golden):
activations take the power of two at or above amax/448 (or amax/6), the intermediate a2 rounds amax at mantissa 1.75.

Source: FlyDSL 8acf56d kernels/mega_moe/quant.py (activations) and epilogue.py, OutputQuant (a2).
"""

from __future__ import annotations

import torch

from megamoe_atom.problem import Exit, Problem

BLOCK = 32
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_INVERSE_MAX_BITS = {"fp8": 0x3B124925, "fp4": 0x3E2AAAAB}  # float32(1/448), float32(1/6)
_A2_HEADROOM = {"fp8": 8, "fp4": 2}
_A2_ROUND = 0x200000  # carries into the exponent from mantissa 1.75 up
_AMAX_FLOOR = 1e-10


def _check_columns(t: torch.Tensor, name: str) -> None:
    if t.ndim < 1 or t.shape[-1] % BLOCK or t.shape[-1] == 0:
        raise Problem(
            "scale_block",
            exit_code=Exit.PRECONDITION,
            what=f"{name} has shape {tuple(t.shape)}, whose last dimension is not a multiple of {BLOCK}",
            why="one e8m0 scale covers 32 values along the contraction, so the last block would have none",
            fix="compare hidden_size and moe_intermediate_size in config.json; MegaMoE needs multiples of 256",
        )


def _blocks(t: torch.Tensor) -> torch.Tensor:
    """[..., K] -> [..., K/32, 32], a view where the strides allow it."""
    return t.reshape(*t.shape[:-1], t.shape[-1] // BLOCK, BLOCK)


def e8m0_value(code: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """2**(code - 127), any shape; uint8 codes 0..254 (255 is NaN and gives NaN)."""
    value = torch.exp2(code.to(torch.float64) - 127.0)
    return torch.where(code == 255, torch.nan, value).to(dtype)


def _exact_scale(exponent: torch.Tensor) -> torch.Tensor:
    """float32 with this biased exponent and mantissa 0, as the kernels build it (exponent << 23); 0 gives 0."""
    return (exponent << 23).view(torch.float32)


# ---- fp4 e2m1 ----------------------------------------------------------------------------------------------------


def encode_fp4(values: torch.Tensor, *, half_up: bool = False) -> torch.Tensor:
    """e2m1 codes 0..15 (uint8) of already scaled values: round to nearest, saturate at 6.

    Ties go to the even code (the hardware convert, activations and weights) or, with half_up, away from zero (a2).
    """
    m = values.abs()
    up = (
        [m >= t for t in (0.75, 1.75, 3.5)]
        if not half_up
        else [m >= t for t in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)]
    )
    down = [m > t for t in (0.25, 1.25, 2.5, 5.0)] if not half_up else []
    code = torch.zeros_like(m, dtype=torch.uint8)
    for step in (*up, *down):
        code += step
    return code | (torch.signbit(values).to(torch.uint8) << 3)


def pack_fp4(codes: torch.Tensor) -> torch.Tensor:
    """[..., K] codes to [..., K/2] bytes, element 2j in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def decode_fp4(packed: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[..., K/2] bytes to [..., K] values, unscaled."""
    positive = torch.tensor(FP4_VALUES, dtype=dtype, device=packed.device)
    table = torch.cat((positive, -positive))
    pairs = torch.stack((table[(packed & 15).int()], table[(packed >> 4).int()]), dim=-1)
    return pairs.flatten(-2)


def dequantize_mxfp4(
    packed: torch.Tensor, scale_e8m0: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """[..., K/2] bytes and [..., K/32] scales to [..., K] values (exact in float32 for scales 3..251)."""
    values = decode_fp4(packed, dtype)
    return (_blocks(values) * e8m0_value(scale_e8m0, dtype).unsqueeze(-1)).flatten(-2)


def quantize_mxfp4(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises weights for an engine that makes its own checkpoint.

    Per block of 32 the better (in squared error) of two scales is taken: the one that cannot saturate and the one half
    of it, which clips the largest values and halves the step of all others.

    Args:
        weights: [..., K] float32, K % 32 == 0, finite.
    Returns:
        packed uint8 [..., K/2] (low nibble first), e8m0 uint8 [..., K/32].
    """
    _check_columns(weights, "weights")
    blocks = _blocks(weights.float())
    if not bool(torch.isfinite(blocks).all()):
        raise Problem(
            "not_finite",
            exit_code=Exit.PRECONDITION,
            what="the weights hold NaN or infinity",
            why="a block's scale follows its largest value, so one of them destroys 32 weights",
            fix="check the source checkpoint",
        )
    high = _ceil_exponent(blocks.abs().amax(-1), "fp4").clamp(1, 254)
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    for exponent in (high, (high - 1).clamp(min=1)):
        scale = _exact_scale(exponent).unsqueeze(-1)
        codes = encode_fp4(blocks / scale)
        table = torch.tensor(FP4_VALUES, device=codes.device)
        value = table[(codes & 7).int()] * torch.where(codes >= 8, -1.0, 1.0)
        error = (value * scale - blocks).square().sum(-1)
        if best is None:
            best = codes, error, exponent
        else:
            better = error < best[1]
            best = (
                torch.where(better.unsqueeze(-1), codes, best[0]),
                torch.minimum(error, best[1]),
                torch.where(better, exponent, best[2]),
            )
    assert best is not None
    return pack_fp4(best[0].flatten(-2)), best[2].to(torch.uint8)


# ---- activations -------------------------------------------------------------------------------------------------


def _ceil_exponent(amax: torch.Tensor, form: str) -> torch.Tensor:
    """Biased exponent (int32) of the power of two at or above amax / largest value of the form."""
    inverse = torch.tensor(_INVERSE_MAX_BITS[form], dtype=torch.int32, device=amax.device).view(torch.float32)
    bits = (amax.clamp(min=_AMAX_FLOOR) * inverse).view(torch.int32)
    exponent = ((bits >> 23) & 0xFF) + ((bits & 0x7FFFFF) != 0).int()
    return exponent.clamp(0, 255)


def quantize_activation(x: torch.Tensor, form: str = "fp8") -> tuple[torch.Tensor, torch.Tensor]:
    """The first kernel of a forward: one e8m0 scale per 32 values, round to nearest even.

    Args:
        x: [..., K] bf16 (widened to float32), K % 32 == 0.
        form: "fp8" (a8w4) or "fp4" (a4w4).
    Returns:
        payload: float8_e4m3fn [..., K], or packed uint8 [..., K/2]; scales uint8 [..., K/32].
    """
    _check_columns(x, "x")
    blocks = _blocks(x.float())
    exponent = _ceil_exponent(blocks.abs().amax(-1), form)
    if form == "fp8":
        scaled = blocks * _exact_scale(254 - exponent).unsqueeze(-1)
        return scaled.flatten(-2).to(torch.float8_e4m3fn), exponent.to(torch.uint8)
    codes = encode_fp4(blocks / _exact_scale(exponent).unsqueeze(-1))
    return pack_fp4(codes.flatten(-2)), exponent.to(torch.uint8)


def quantize_a2(a: torch.Tensor, form: str = "fp8") -> tuple[torch.Tensor, torch.Tensor]:
    """The quantisation of gemm1's epilogue; its scale rounds at mantissa 1.75 instead of up.

    Args:
        a: [..., I] float32, I % 32 == 0.
    Returns:
        payload as in quantize_activation, scales uint8 [..., I/32].
    """
    _check_columns(a, "a2")
    blocks = _blocks(a)
    bits = blocks.abs().amax(-1).view(torch.int32)
    exponent = (((bits + _A2_ROUND) >> 23) - _A2_HEADROOM[form]).clamp(min=0)
    scaled = blocks * _exact_scale(254 - exponent).unsqueeze(-1)
    if form == "fp8":
        return scaled.flatten(-2).to(torch.float8_e4m3fn), exponent.to(torch.uint8)
    return pack_fp4(encode_fp4(scaled, half_up=True).flatten(-2)), exponent.to(torch.uint8)


def dequantize(payload: torch.Tensor, scale_e8m0: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of a quantised activation or a2: fp8 payload [..., K], or packed fp4 [..., K/2]; scales [..., K/32]."""
    if payload.dtype == torch.uint8:
        return dequantize_mxfp4(payload, scale_e8m0, dtype)
    scale = e8m0_value(scale_e8m0, dtype).unsqueeze(-1)
    return (_blocks(payload.to(torch.float32).to(dtype)) * scale).flatten(-2)
