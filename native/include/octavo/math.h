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

OCTAVO_INLINE f32x16 exp2_of(f32x16 x) {
    x = select(lt(set1(127.0f), x), set1(127.0f), x);
    const f32x16 n = round_even(x);
    return times_power(exp2_fraction(sub(x, n)), n, x);
}

// The same bits as exp2_of for x <= 0 (and NaN for NaN).
OCTAVO_INLINE f32x16 exp2_nonpositive(f32x16 x) {
    const f32x16 n = round_even(x);
    return times_power(exp2_fraction(sub(x, n)), n, x);
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

// |x| <= 0.625: x + x^3 P(x^2), minimax (5e-9 before rounding); beyond: (1 - e) / (1 + e), e = exp(-2|x|).
OCTAVO_INLINE f32x16 tanh_of(f32x16 x) {
    const f32x16 size = abs(x), square = mul(x, x);
    f32x16 p = set1(-0x1.764e58p-8f);
    p = fma(p, square, set1(0x1.524138p-6f));
    p = fma(p, square, set1(-0x1.b840e6p-5f));
    p = fma(p, square, set1(0x1.11074ep-3f));
    p = fma(p, square, set1(-0x1.555534p-2f));
    const f32x16 near = fma(mul(x, square), p, x);
    const f32x16 e = exp_of(mul(size, set1(-2.0f)));
    const f32x16 one = set1(1.0f);
    const f32x16 far = div(sub(one, e), add(one, e));
    return select(le(size, set1(0.625f)), near, select(lt(x, zero_f32()), neg(far), far));
}

// g * (the normal distribution at g) * u. Below 0 it is exp(-g^2 / 2) P(t) t with t = 1 / (1 + 0.3 |g|), minimax
// in relative error (9e-8 before rounding), above 0 one minus that of -g.
OCTAVO_INLINE f32x16 gelu_mul(f32x16 g, f32x16 u) {
    const f32x16 one = set1(1.0f);
    const f32x16 t = div(one, fma(set1(0.3f), abs(g), one));
    f32x16 p = set1(0x1.296f78p-8f);
    p = fma(p, t, set1(0x1.f13b9ap-7f));
    p = fma(p, t, set1(-0x1.e3cd06p-4f));
    p = fma(p, t, set1(0x1.52b86ap-3f));
    p = fma(p, t, set1(-0x1.ca0672p-6f));
    p = fma(p, t, set1(0x1.e614bep-4f));
    p = fma(p, t, set1(0x1.a287c0p-4f));
    p = fma(p, t, set1(0x1.ed731cp-4f));
    p = fma(p, t, set1(0x1.ea0fd6p-4f));
    const f32x16 tail = mul(mul(p, t), exp_of(mul(mul(g, g), set1(-0.5f))));
    return mul(mul(g, select(lt(g, zero_f32()), tail, sub(one, tail))), u);
}

// g / (1 + exp(-w)) * u with w = g (c0 + c1 g^2): c0 = 2 sqrt(2 / pi), c1 = 0.044715 c0.
OCTAVO_INLINE f32x16 gelu_tanh_mul(f32x16 g, f32x16 u) {
    const f32x16 w = mul(g, fma(mul(g, g), set1(0x1.2444f2p-4f), set1(0x1.988454p+0f)));
    return mul(div(g, add(set1(1.0f), exp_of(neg(w)))), u);
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
