// exp2, exp and sigmoid of docs/numerics.md, sixteen lanes at a time. For kernel sources only (see simd.h).
#pragma once
#include "octavo/simd.h"

namespace octavo::OCTAVO_ISA_NS {

constexpr float kLog2e = 0x1.715476p+0f;

// 2^f for |f| <= 0.5, minimax in relative error (2e-9 before rounding), constant term exactly 1.
OCTAVO_INLINE f32x16 exp2_fraction(f32x16 f) {
    f32x16 p = set1(0x1.41fbbcp-13f);
    p = fma(p, f, set1(0x1.5f3e52p-10f));
    p = fma(p, f, set1(0x1.3b2d4cp-7f));
    p = fma(p, f, set1(0x1.c6aee8p-5f));
    p = fma(p, f, set1(0x1.ebfbdcp-3f));
    p = fma(p, f, set1(0x1.62e430p-1f));
    return fma(p, f, set1(1.0f));
}

// p * 2^n by the exponent field; 0 where x <= -126.
OCTAVO_INLINE f32x16 exp2_scale(f32x16 p, f32x16 n, f32x16 x) {
    const f32x16 scaled = as_f32(add(as_i32(p), shift_left<23>(to_i32(n))));
    return select(le(x, set1(-126.0f)), zero_f32(), scaled);
}

OCTAVO_INLINE f32x16 exp2_of(f32x16 x) {
    x = select(lt(set1(127.0f), x), set1(127.0f), x);
    const f32x16 n = round_even(x);
    return exp2_scale(exp2_fraction(sub(x, n)), n, x);
}

// The same bits as exp2_of for x <= 0 (and NaN for NaN).
OCTAVO_INLINE f32x16 exp2_nonpositive(f32x16 x) {
    const f32x16 n = round_even(x);
    return exp2_scale(exp2_fraction(sub(x, n)), n, x);
}

OCTAVO_INLINE f32x16 exp_of(f32x16 x) {
    const f32x16 log2e = set1(kLog2e);
    // Beyond +-127 in base 2 the result is 0 or the largest; clamping first keeps f small.
    f32x16 y = mul(x, log2e);
    const mask16 low = le(y, set1(-126.0f));
    const mask16 high = lt(set1(127.0f), y);
    const f32x16 n = select(high, set1(127.0f), round_even(y));
    const f32x16 f = select(high, zero_f32(), fma(x, log2e, neg(n)));
    const f32x16 scaled = as_f32(add(as_i32(exp2_fraction(f)), shift_left<23>(to_i32(n))));
    return select(low, zero_f32(), scaled);
}

// g / (1 + exp(-g)) * u
OCTAVO_INLINE f32x16 silu_mul(f32x16 g, f32x16 u) { return mul(div(g, add(set1(1.0f), exp_of(neg(g)))), u); }

// Rounded to bf16 and back; for numbers that are not NaN (a NaN may become any number: callers keep another witness).
OCTAVO_INLINE f32x16 round_bf16_number(f32x16 x) {
    const i32x16 u = as_i32(x);
    const i32x16 odd = bit_and(shift_right<16>(u), set1(int32_t{1}));
    return as_f32(bit_and(add(add(u, set1(int32_t{0x7fff})), odd), set1(static_cast<int32_t>(0xffff0000u))));
}

}  // namespace octavo::OCTAVO_ISA_NS
