"""What each opcode must do, written a second time: in Python integers and exact fractions, from the ISA's words.

Nothing here shares code, language or structure with kernel_lane/isa. A lane opcode is a function of its sources as
unsigned integers; keyword `old` is the destination's content, `cin` the carry, `lane` the lane, `opsel`, `imm` modifiers.
It returns the result, or (result, carry) where there is one; comparisons return 0 or 1.
"""

# ruff: noqa: E501 - a table: one opcode per line
from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


# ---- numbers -----------------------------------------------------------------------------------------------------
def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def to_float(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits & M32))[0])


def round_to(value: Fraction, mantissa: int, smallest: int, largest: int) -> Fraction | None:
    """Nearest value with `mantissa` fraction bits and exponents smallest..largest, ties to even; None: overflow."""
    if value == 0:
        return Fraction(0)
    size, exponent = abs(value), smallest
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - mantissa)
    quotient = size / step
    whole = quotient.numerator // quotient.denominator
    rest = quotient - whole
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1):
        whole += 1
    result = whole * step
    if result >= Fraction(2) ** (largest + 1):
        return None
    return result if value > 0 else -result


def float_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def f32(value: Fraction, *, negative_zero: bool = False) -> int:
    """Exact value -> float32 bits, one rounding."""
    rounded = round_to(value, 23, -126, 127)
    if rounded is None:
        return 0xFF800000 if value < 0 else 0x7F800000
    if rounded == 0:
        return 0x80000000 if value < 0 or negative_zero else 0
    return float_bits(float(rounded))


def is_nan(bits: int) -> bool:
    return bits & 0x7FFFFFFF > 0x7F800000


def finite(*values: int) -> bool:
    return all(v & 0x7F800000 != 0x7F800000 for v in values)


NAN = 0x7FC00000


def arithmetic(operate: Callable[..., Fraction], special: Callable[..., float]) -> Callable[..., int]:
    """Exact where all is finite; IEEE's table of special cases (Python's floats) elsewhere."""

    def run(*sources: int) -> int:
        if any(is_nan(s) for s in sources):
            return NAN
        values = [to_float(s) for s in sources]
        if not finite(*sources):
            try:
                return float_bits(special(*values))
            except (ValueError, OverflowError):
                return NAN
        exact = operate(*[Fraction(v) for v in values])
        # A zero result has the sign that IEEE gives: that of float arithmetic on the same signs.
        return f32(exact, negative_zero=exact == 0 and math.copysign(1, special(*values)) < 0)

    return run


ADD = arithmetic(lambda a, b: a + b, lambda a, b: a + b)
MUL = arithmetic(lambda a, b: a * b, lambda a, b: a * b)
FMA = arithmetic(lambda a, b, c: a * b + c, lambda a, b, c: a * b + c)


def neg(bits: int) -> int:
    return bits ^ 0x80000000


def order_key(bits: int) -> int:
    """A number's place among all float32 numbers: -0 comes before +0."""
    return -(bits & 0x7FFFFFFF) - 1 if bits >> 31 else bits


def number_max(*sources: int) -> int:
    numbers = [s for s in sources if not is_nan(s)]
    return max(numbers, key=order_key) if numbers else NAN


def number_min(*sources: int) -> int:
    numbers = [s for s in sources if not is_nan(s)]
    return min(numbers, key=order_key) if numbers else NAN


def nan_max(*sources: int) -> int:
    return NAN if any(is_nan(s) for s in sources) else max(sources, key=order_key)


def nan_min(*sources: int) -> int:
    return NAN if any(is_nan(s) for s in sources) else min(sources, key=order_key)


def med3(a: int, b: int, c: int) -> int:
    if any(is_nan(s) for s in (a, b, c)):
        return number_min(a, b, c)
    return sorted((a, b, c), key=order_key)[1]


def fp8(bits: int) -> int:
    """float32 -> e4m3fn, ties to even, NaN beyond the largest number's half step."""
    sign = bits >> 24 & 0x80
    if not finite(bits):
        return sign | 0x7F
    rounded = round_to(abs(Fraction(to_float(bits))), 3, -6, 8)
    if rounded is None or rounded > 448:
        return sign | 0x7F
    for code in range(0x7F):
        e, m = code >> 3, code & 7
        if (Fraction(8 + m, 8) * Fraction(2) ** (e - 7) if e else Fraction(m, 512)) == rounded:
            return sign | code
    raise AssertionError(rounded)


def fp4(value: float) -> int:
    """Number -> e2m1, nearest with ties to the even code, saturating; NaN to the largest."""
    sign = 8 if math.copysign(1, value) < 0 else 0
    if value != value:
        return sign | 7
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    size = min(abs(value), 6.0)
    return sign | min(range(8), key=lambda c: (abs(table[c] - size), c & 1))


def bf16(bits: int) -> int:
    if is_nan(bits):
        return 0x7FC0
    if not finite(bits):
        return bits >> 16
    rounded = round_to(Fraction(to_float(bits)), 7, -126, 127)
    sign = bits >> 16 & 0x8000
    if rounded is None:
        return sign | 0x7F80
    return sign | float_bits(abs(float(rounded))) >> 16


def near(function: Callable[[float], float]) -> Callable[[int], int]:
    """A transcendental: float64, then one rounding to float32; denormals count as 0 going in and coming out (ISA)."""

    def flushed(bits: int) -> int:
        return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits

    def run(bits: int) -> int:
        return flushed(whole(flushed(bits)))

    def whole(bits: int) -> int:
        try:
            value = function(to_float(bits))
        except OverflowError:
            value = math.inf
        except (ValueError, ZeroDivisionError):
            return NAN
        if math.isinf(value) or value != value:
            return float_bits(value) if value == value else NAN
        return f32(Fraction(value), negative_zero=math.copysign(1, value) < 0)

    return run


def reciprocal(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, x)
    return math.copysign(0.0, x) if math.isinf(x) else 1.0 / x


def rounded(function: Callable[[float], float]) -> Callable[[int], int]:
    def run(bits: int) -> int:
        if not finite(bits):
            return NAN if is_nan(bits) else bits
        value = float(function(to_float(bits)))
        return float_bits(math.copysign(value, to_float(bits)) if value == 0 else value)

    return run


def to_int(bits: int, low: int, high: int) -> int:
    if is_nan(bits):
        return 0
    if not finite(bits):
        return (low if bits >> 31 else high) & M32
    return max(low, min(high, math.trunc(Fraction(to_float(bits))))) & M32


def rotate_bytes(a: int, b: int, s: int) -> int:
    source = struct.pack("<II", b, a)
    out = bytearray()
    for selector in struct.pack("<I", s):
        if selector < 8:
            out.append(source[selector])
        elif selector < 12:
            out.append(255 if source[2 * (selector - 8) + 1] & 0x80 else 0)
        else:
            out.append(0 if selector == 12 else 255)
    return int.from_bytes(out, "little")


def field(x: int, offset: int, width: int) -> int:
    return sum((x >> (offset + k) & 1) << k for k in range(width))


def signed_field(x: int, offset: int, width: int) -> int:
    return signed(sum((signed(x) >> (offset + k) & 1) << k for k in range(width)), width) & M32 if width else 0


def pieces(table: int, a: int, b: int, c: int) -> int:
    return sum((table >> ((a >> k & 1) * 4 + (b >> k & 1) * 2 + (c >> k & 1)) & 1) << k for k in range(32))


# ---- lane opcodes ---------------------------------------------------------------------------------------------------
def h(x: int) -> int:
    return x & 0xFFFF


def s24(x: int) -> int:
    return signed(x & 0xFFFFFF, 24)


LANE: dict[str, Callable[..., Any]] = {
    "v_mov_b32": lambda a: a, "v_mov_b64": lambda a: a, "v_not_b32": lambda a: a ^ M32,
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_cvt_f32_i32": lambda a: f32(Fraction(signed(a))), "v_cvt_f32_u32": lambda a: f32(Fraction(a)),
    "v_cvt_u32_f32": lambda a: to_int(a, 0, M32), "v_cvt_i32_f32": lambda a: to_int(a, -(1 << 31), (1 << 31) - 1),
    "v_cvt_f32_ubyte0": lambda a: f32(Fraction(a & 255)),
    "v_trunc_f32": rounded(math.trunc), "v_ceil_f32": rounded(math.ceil), "v_floor_f32": rounded(math.floor), "v_rndne_f32": rounded(round),
    "v_exp_f32": near(lambda x: 2.0**x), "v_log_f32": near(lambda x: -math.inf if x == 0 else math.log2(x)),
    "v_rcp_f32": near(reciprocal), "v_rcp_iflag_f32": near(reciprocal),
    "v_rsq_f32": near(lambda x: reciprocal(math.copysign(math.sqrt(x), x))),
    "v_sqrt_f32": near(lambda x: math.copysign(math.sqrt(x), x)),
    "v_ffbh_u32": lambda a: 32 - a.bit_length() if a else M32, "v_ffbl_b32": lambda a: f"{a:b}"[::-1].index("1") if a else M32,
    "v_cndmask_b32": lambda a, b, cin: b if cin else a,
    "v_add_f32": ADD, "v_sub_f32": lambda a, b: ADD(a, neg(b)), "v_subrev_f32": lambda a, b: ADD(b, neg(a)), "v_mul_f32": MUL,
    "v_mul_i32_i24": lambda a, b: s24(a) * s24(b) & M32, "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) & M32,
    "v_min_f32": number_min, "v_max_f32": number_max,
    "v_min_i32": lambda a, b: min(a, b, key=signed), "v_max_i32": lambda a, b: max(a, b, key=signed),
    "v_min_u32": lambda a, b: min(a, b), "v_max_u32": lambda a, b: max(a, b),
    "v_lshrrev_b32": lambda a, b: b // 2 ** (a % 32), "v_ashrrev_i32": lambda a, b: signed(b) // 2 ** (a % 32) & M32,
    "v_lshlrev_b32": lambda a, b: b * 2 ** (a % 32) & M32,
    "v_and_b32": lambda a, b: a & b, "v_or_b32": lambda a, b: a | b, "v_xor_b32": lambda a, b: a ^ b, "v_xnor_b32": lambda a, b: a ^ b ^ M32,
    "v_add_co_u32": lambda a, b: ((a + b) & M32, (a + b) >> 32), "v_sub_co_u32": lambda a, b: ((a - b) & M32, int(a < b)),
    "v_subrev_co_u32": lambda a, b: ((b - a) & M32, int(b < a)),
    "v_addc_co_u32": lambda a, b, cin: ((a + b + cin) & M32, (a + b + cin) >> 32),
    "v_subb_co_u32": lambda a, b, cin: ((a - b - cin) & M32, int(a < b + cin)),
    "v_subbrev_co_u32": lambda a, b, cin: ((b - a - cin) & M32, int(b < a + cin)),
    "v_add_u16": lambda a, b: h(a + b), "v_sub_u16": lambda a, b: h(a - b), "v_mul_lo_u16": lambda a, b: h(h(a) * h(b)),
    "v_lshlrev_b16": lambda a, b: h(h(b) << a % 16), "v_lshrrev_b16": lambda a, b: h(b) >> a % 16,
    "v_ashrrev_i16": lambda a, b: h(signed(b, 16) >> a % 16),
    "v_max_u16": lambda a, b: max(h(a), h(b)), "v_min_u16": lambda a, b: min(h(a), h(b)),
    "v_max_i16": lambda a, b: h(max(signed(a, 16), signed(b, 16))), "v_min_i16": lambda a, b: h(min(signed(a, 16), signed(b, 16))),
    "v_sub_u32_clamp": lambda a, b: max(a - b, 0),
    "v_add_u32": lambda a, b: (a + b) & M32, "v_sub_u32": lambda a, b: (a - b) & M32, "v_subrev_u32": lambda a, b: (b - a) & M32,
    "v_fmac_f32": lambda a, b, old: FMA(a, b, old), "v_fmamk_f32": lambda a, b, k: FMA(a, k, b), "v_fmaak_f32": lambda a, b, k: FMA(a, b, k),
    "v_mad_i32_i24": lambda a, b, c: (s24(a) * s24(b) + c) & M32,
    "v_mad_u32_u24": lambda a, b, c: ((a & 0xFFFFFF) * (b & 0xFFFFFF) + c) & M32,
    "v_bfe_u32": lambda a, b, c: field(a, b % 32, c % 32), "v_bfe_i32": lambda a, b, c: signed_field(a, b % 32, c % 32),
    "v_bfi_b32": lambda a, b, c: sum((b if a >> k & 1 else c) & 1 << k for k in range(32)),
    "v_fma_f32": FMA, "v_alignbit_b32": lambda a, b, c: ((a << 32) + b) >> c % 32 & M32,
    "v_alignbyte_b32": lambda a, b, c: int.from_bytes(struct.pack("<II", b, a)[c % 4 : c % 4 + 4], "little"),
    "v_min3_f32": number_min, "v_max3_f32": number_max, "v_med3_f32": med3, "v_minimum3_f32": nan_min, "v_maximum3_f32": nan_max,
    "v_min3_i32": lambda a, b, c: min(a, b, c, key=signed), "v_max3_i32": lambda a, b, c: max(a, b, c, key=signed),
    "v_min3_u32": lambda a, b, c: min(a, b, c), "v_max3_u32": lambda a, b, c: max(a, b, c),
    "v_perm_b32": rotate_bytes, "v_xad_u32": lambda a, b, c: ((a ^ b) + c) & M32,
    "v_lshl_add_u32": lambda a, b, c: ((a << b % 32) + c) & M32, "v_add_lshl_u32": lambda a, b, c: (a + b & M32) << c % 32 & M32,
    "v_add3_u32": lambda a, b, c: (a + b + c) & M32, "v_lshl_or_b32": lambda a, b, c: (a << b % 32 | c) & M32,
    "v_and_or_b32": lambda a, b, c: a & b | c, "v_or3_b32": lambda a, b, c: a | b | c,
    "v_lshl_add_u64": lambda a, b, c: ((a << b % 8) + c) & M64,
    "v_bitop3_b32": lambda a, b, c, imm: pieces(imm, a, b, c),
    "v_cvt_scalef32_pk_fp4_f32": lambda a, b, c, old, opsel: (
        lambda byte, at: old & ~(255 << at) & M32 | byte << at)(
            fp4(to_float(a) / 2.0 ** ((c >> 23 & 255) - 127)) | fp4(to_float(b) / 2.0 ** ((c >> 23 & 255) - 127)) << 4, 8 * (opsel >> 2)),
    "v_cvt_pk_bf16_f32": lambda a, b: bf16(a) | bf16(b) << 16,
    "v_mul_lo_u32": lambda a, b: a * b & M32, "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: signed(a) * signed(b) >> 32 & M32,
    "v_ldexp_f32": lambda a, b: (NAN if is_nan(a) else a if not finite(a) else
                                 f32(Fraction(to_float(a)) * Fraction(2) ** max(-400, min(400, signed(b))), negative_zero=a >> 31 == 1)),
    "v_bcnt_u32_b32": lambda a, b: (a.bit_count() + b) & M32,
    "v_mbcnt_lo_u32_b32": lambda a, b, lane: (sum(a >> k & 1 for k in range(min(lane, 32))) + b) & M32,
    "v_mbcnt_hi_u32_b32": lambda a, b, lane: (sum(a >> k & 1 for k in range(max(0, lane - 32))) + b) & M32,
    "v_lshlrev_b64": lambda a, b: b << a % 64 & M64, "v_lshrrev_b64": lambda a, b: b >> a % 64,
    "v_ashrrev_i64": lambda a, b: signed(b, 64) >> a % 64 & M64,
    "v_bfm_b32": lambda a, b: (2 ** (a % 32) - 1) * 2 ** (b % 32) & M32,
    "v_cvt_pk_fp8_f32": lambda a, b, old, opsel: (
        old & 0xFFFF | (fp8(a) | fp8(b) << 8) << 16 if opsel & 8 else old & 0xFFFF0000 | fp8(a) | fp8(b) << 8),
    "v_mad_u64_u32": lambda a, b, c: ((a * b + c) & M64, (a * b + c) >> 64),
    "v_mad_i64_i32": lambda a, b, c: (lambda t: (t & M64, t >> 64 & 1))(signed(a) * signed(b) + signed(c, 64)),
}  # fmt: skip

_RELATION: dict[str, Callable[[Any, Any], bool]] = {
    "lt": lambda x, y: x < y, "eq": lambda x, y: x == y, "le": lambda x, y: x <= y, "gt": lambda x, y: x > y,
    "ne": lambda x, y: x != y, "ge": lambda x, y: x >= y, "lg": lambda x, y: x < y or x > y,
}  # fmt: skip


def compare(name: str) -> Callable[[int, int], int]:
    """v_cmp_RELATION_TYPE as a function of two bit patterns."""
    _, _, relation, kind = name.split("_")
    size = int(kind[1:])
    if kind[0] == "f":
        view: Callable[[int], Any] = to_float
    elif kind[0] == "i":
        view = lambda x: signed(x, size)  # noqa: E731 - one of three views
    else:
        view = lambda x: x & (1 << size) - 1  # noqa: E731
    if relation in ("o", "u"):
        return lambda a, b: int((is_nan(a) or is_nan(b)) == (relation == "u"))
    if relation == "neq":
        return lambda a, b: int(view(a) != view(b))
    if relation[0] == "n" and relation != "ne":
        return lambda a, b: int(not _RELATION[relation[1:]](view(a), view(b)))
    return lambda a, b: int(_RELATION[relation](view(a), view(b)))


# ---- scalar opcodes: (s0, s1, scc, k, old, exec) -> (result or None, scc, exec) ----------------------------------------
def _logic(operate: Callable[[int, int], int], bits: int) -> Callable[..., tuple[int | None, int, int]]:
    def run(a: int, b: int, scc: int, k: int, old: int, ex: int) -> tuple[int | None, int, int]:
        r = operate(a, b) & (1 << bits) - 1
        return r, int(r != 0), ex

    return run


def _pick(better: Callable[[int, int], bool]) -> Callable[..., tuple[int | None, int, int]]:
    return lambda a, b, scc, k, old, ex: (a if better(a, b) else b, int(better(a, b)), ex)


def _save(operate: Callable[[int, int], int]) -> Callable[..., tuple[int | None, int, int]]:
    return lambda a, b, scc, k, old, ex: (ex, int(operate(a, ex) & M64 != 0), operate(a, ex) & M64)


def _shift_add(n: int) -> Callable[..., tuple[int | None, int, int]]:
    return lambda a, b, scc, k, old, ex: (((a << n) + b) & M32, int((a << n) + b > M32), ex)


def _overflow(value: int) -> int:
    return int(not -(1 << 31) <= value < 1 << 31)


SCALAR: dict[str, Callable[..., tuple[int | None, int, int]]] = {
    "s_add_u32": lambda a, b, scc, k, old, ex: ((a + b) & M32, (a + b) >> 32, ex),
    "s_sub_u32": lambda a, b, scc, k, old, ex: ((a - b) & M32, int(b > a), ex),
    "s_add_i32": lambda a, b, scc, k, old, ex: ((a + b) & M32, _overflow(signed(a) + signed(b)), ex),
    "s_sub_i32": lambda a, b, scc, k, old, ex: ((a - b) & M32, _overflow(signed(a) - signed(b)), ex),
    "s_addc_u32": lambda a, b, scc, k, old, ex: ((a + b + scc) & M32, (a + b + scc) >> 32, ex),
    "s_subb_u32": lambda a, b, scc, k, old, ex: ((a - b - scc) & M32, int(a < b + scc), ex),
    "s_min_i32": _pick(lambda a, b: signed(a) < signed(b)), "s_min_u32": _pick(lambda a, b: a < b),
    "s_max_i32": _pick(lambda a, b: signed(a) > signed(b)), "s_max_u32": _pick(lambda a, b: a > b),
    "s_cselect_b32": lambda a, b, scc, k, old, ex: (a if scc else b, scc, ex),
    "s_cselect_b64": lambda a, b, scc, k, old, ex: (a if scc else b, scc, ex),
    **{f"s_{n}_b{w}": _logic(f, w) for w in (32, 64) for n, f in {
        "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "andn2": lambda a, b: a & ~b,
        "orn2": lambda a, b: a | ~b}.items()},
    "s_lshl_b32": _logic(lambda a, b: a << b % 32, 32), "s_lshl_b64": _logic(lambda a, b: a << b % 64, 64),
    "s_lshr_b32": _logic(lambda a, b: a >> b % 32, 32), "s_lshr_b64": _logic(lambda a, b: a >> b % 64, 64),
    "s_ashr_i32": _logic(lambda a, b: signed(a) >> b % 32, 32), "s_ashr_i64": _logic(lambda a, b: signed(a, 64) >> b % 64, 64),
    "s_bfm_b32": lambda a, b, scc, k, old, ex: ((2 ** (a % 32) - 1) * 2 ** (b % 32) & M32, scc, ex),
    "s_mul_i32": lambda a, b, scc, k, old, ex: (a * b & M32, scc, ex),
    "s_mul_hi_u32": lambda a, b, scc, k, old, ex: (a * b >> 32, scc, ex),
    "s_mul_hi_i32": lambda a, b, scc, k, old, ex: (signed(a) * signed(b) >> 32 & M32, scc, ex),
    "s_bfe_u32": _logic(lambda a, b: field(a, b % 32, min(b >> 16 & 127, 32)), 32),
    "s_bfe_i32": _logic(lambda a, b: signed_field(a, b % 32, min(b >> 16 & 127, 32)), 32),
    **{f"s_lshl{n}_add_u32": _shift_add(n) for n in (1, 2, 3, 4)},
    "s_pack_ll_b32_b16": lambda a, b, scc, k, old, ex: (h(a) + (h(b) << 16), scc, ex),
    "s_mov_b32": lambda a, b, scc, k, old, ex: (a, scc, ex), "s_mov_b64": lambda a, b, scc, k, old, ex: (a, scc, ex),
    "s_not_b32": _logic(lambda a, b: ~a, 32), "s_not_b64": _logic(lambda a, b: ~a, 64),
    "s_brev_b32": lambda a, b, scc, k, old, ex: (int(f"{a:032b}"[::-1], 2), scc, ex),
    "s_bcnt1_i32_b32": _logic(lambda a, b: a.bit_count(), 32), "s_bcnt1_i32_b64": _logic(lambda a, b: a.bit_count(), 32),
    "s_ff1_i32_b32": lambda a, b, scc, k, old, ex: (f"{a:b}"[::-1].index("1") if a else M32, scc, ex),
    "s_ff1_i32_b64": lambda a, b, scc, k, old, ex: (f"{a:b}"[::-1].index("1") if a else M32, scc, ex),
    "s_sext_i32_i8": lambda a, b, scc, k, old, ex: (signed(a, 8) & M32, scc, ex),
    "s_sext_i32_i16": lambda a, b, scc, k, old, ex: (signed(a, 16) & M32, scc, ex),
    "s_and_saveexec_b64": _save(lambda a, e: a & e), "s_or_saveexec_b64": _save(lambda a, e: a | e),
    "s_xor_saveexec_b64": _save(lambda a, e: a ^ e), "s_andn2_saveexec_b64": _save(lambda a, e: a & ~e),
    "s_abs_i32": _logic(lambda a, b: abs(signed(a)), 32),
    "s_movk_i32": lambda a, b, scc, k, old, ex: (k & M32, scc, ex),
    "s_addk_i32": lambda a, b, scc, k, old, ex: ((old + k) & M32, _overflow(signed(old) + k), ex),
    "s_mulk_i32": lambda a, b, scc, k, old, ex: (old * k & M32, scc, ex),
    "s_bitcmp0_b32": lambda a, b, scc, k, old, ex: (None, 1 - (a >> b % 32 & 1), ex),
    "s_bitcmp1_b32": lambda a, b, scc, k, old, ex: (None, a >> b % 32 & 1, ex),
}  # fmt: skip


def scalar_compare(name: str) -> Callable[..., tuple[int | None, int, int]]:
    """s_cmp_RELATION_TYPE and s_cmpk_RELATION_TYPE."""
    _, word, relation, kind = name.split("_")
    size = int(kind[1:])
    view = (lambda x: signed(x, size)) if kind[0] == "i" else (lambda x: x & (1 << size) - 1)

    def run(a: int, b: int, scc: int, k: int, old: int, ex: int) -> tuple[int | None, int, int]:
        if word == "cmpk":
            a, b = old, k if kind[0] == "i" else k & 0xFFFF
        return None, int(_RELATION["ne" if relation == "lg" else relation](view(a), view(b))), ex

    return run


ATOMIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, x: (old + x) & M32, "umax": max, "umin": min, "smax": lambda old, x: max(old, x, key=signed),
    "smin": lambda old, x: min(old, x, key=signed), "and": lambda old, x: old & x, "or": lambda old, x: old | x, "swap": lambda old, x: x,
    "add_f32": lambda old, x: ADD(old, x),
    "pk_add_bf16": lambda old, x: bf16(ADD((old & 0xFFFF) << 16, (x & 0xFFFF) << 16)) | bf16(ADD(old >> 16 << 16, x >> 16 << 16)) << 16,
    "add_x2": lambda old, x: (old + x) & M64, "swap_x2": lambda old, x: x,
}  # fmt: skip
