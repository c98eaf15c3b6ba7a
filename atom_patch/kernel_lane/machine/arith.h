/* The arithmetic that meanings refer to: conversions and float helpers, as the gfx950 kernels' mode defines them
 * (round to nearest even, denormals kept, IEEE on). Each is tested against an independent definition in tests/lane. */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;

static inline float as_f(u32 x) { float f; memcpy(&f, &x, 4); return f; }
static inline u32 from_f(float f) { u32 x; memcpy(&x, &f, 4); return x; }
static inline u32 lowest_bit(u64 x) { return (u32)__builtin_ctzll(x); }
static inline u32 highest_zeros(u32 x) { return (u32)__builtin_clz(x); }
static inline u32 popcount(u64 x) { return (u32)__builtin_popcountll(x); }
static inline u32 reverse_bits(u32 x) {
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0F0F0F0F) | (x & 0x0F0F0F0F) << 4;
    return __builtin_bswap32(x);
}
/* The approximate opcodes know no denormals, whatever the mode: 0 with the sign, going in and coming out. */
static inline float flush(float f) { return fabsf(f) < 0x1p-126f ? copysignf(0, f) : f; }
static inline float fma32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
/* min/max: a number beats NaN; minimum/maximum: NaN wins. -0 < +0 in both. */
static inline float max_f32(float a, float b) {
    if (a != a) return b;
    if (b != b) return a;
    return a > b ? a : b > a ? b : signbit(a) ? b : a;
}
static inline float min_f32(float a, float b) {
    if (a != a) return b;
    if (b != b) return a;
    return a < b ? a : b < a ? b : signbit(a) ? a : b;
}
static inline float maximum_f32(float a, float b) { return a != a ? a : b != b ? b : max_f32(a, b); }
static inline float minimum_f32(float a, float b) { return a != a ? a : b != b ? b : min_f32(a, b); }
/* The middle of three; with a NaN among them, the smallest number. */
static inline float med3_f32(float a, float b, float c) {
    if (a != a || b != b || c != c) return min_f32(min_f32(a, b), c);
    float top = max_f32(max_f32(a, b), c);
    return top == a ? max_f32(b, c) : top == b ? max_f32(a, c) : max_f32(a, b);
}
static inline u32 float_to_u32(float f) { return !(f > 0) ? 0 : f >= 4294967296.0f ? 0xFFFFFFFFu : (u32)f; }
static inline i32 float_to_i32(float f) {
    return f != f ? 0 : f >= 2147483648.0f ? INT32_MAX : f <= -2147483648.0f ? INT32_MIN : (i32)f;
}
static inline u32 to_bf16(float f) {
    u32 b = from_f(f);
    if (f != f) return b >> 16 | 0x40; /* quiet, payload kept */
    return (b + 0x7FFF + (b >> 16 & 1)) >> 16;
}
/* e4m3fn, ties to even. Beyond 448 + half a step: NaN (this hardware mode does not saturate). */
static inline u32 to_fp8(float f) {
    u32 sign = from_f(f) >> 24 & 0x80;
    float a = fabsf(f);
    if (f != f || a > 464.0f) return sign | 0x7F;
    if (a < 0.015625f) return sign | (u32)rintf(a * 512.0f); /* subnormal step 2^-9; 8 is the smallest normal */
    u32 b = from_f(a);
    b += 0x7FFFF + (b >> 20 & 1);
    u32 code = (b >> 20) - (120u << 3);
    return code > 0x7E ? sign | 0x7F : sign | code;
}
/* e2m1, ties to even, saturating; NaN gives the largest number. */
static inline u32 to_fp4(float f) {
    u32 sign = from_f(f) >> 28 & 8;
    float a = fabsf(f);
    if (!(a < 6.0f)) return sign | 7;
    if (a < 1.0f) return sign | (u32)rintf(a * 2.0f);
    if (a < 2.0f) return sign | ((u32)rintf(a * 2.0f));
    if (a < 4.0f) return sign | ((u32)rintf(a) + 2);
    return sign | ((u32)rintf(a * 0.5f) + 4);
}
/* x / 2^(exponent of the scale): the scale operand of v_cvt_scalef32 counts by its exponent only. */
static inline float scale_down(float x, u32 scale) { return scalbnf(x, 127 - (int)(scale >> 23 & 255)); }
static inline u32 select_bytes(u32 high, u32 low, u32 selector) {
    u64 bytes = (u64)high << 32 | low;
    u32 out = 0;
    for (int k = 0; k < 4; k++) {
        u32 s = selector >> 8 * k & 255, b;
        if (s < 8) b = bytes >> 8 * s & 255;
        else if (s < 12) b = bytes >> (16 * (s - 8) + 15) & 1 ? 255 : 0; /* the sign of one of four 16-bit halves */
        else b = s == 12 ? 0 : 255;
        out |= b << 8 * k;
    }
    return out;
}
/* Bit k of the table answers the inputs (a, b, c) = bits 2, 1, 0 of k. */
static inline u32 truth_table(u32 a, u32 b, u32 c, u32 table) {
    u32 out = 0;
    for (u32 k = 0; k < 8; k++)
        if (table >> k & 1) out |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    return out;
}
