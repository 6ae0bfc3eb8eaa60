// The variant every other one is compared with: plain C++, baseline instructions, any CPU. Included by simd.h only.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace octavo::OCTAVO_ISA_NS {

struct f32x16 {
    float v[16];
};
struct i32x16 {
    int32_t v[16];
};
struct mask16 {
    uint32_t v;  // bit j is lane j
};

// ---- one number ---------------------------------------------------------------------------------------------------

// a * b + c rounded once, without libm and without an FMA instruction: the product of two floats is exact in binary64,
// the sum is rounded to odd there, and a round to odd followed by a round to nearest is a single rounding.
OCTAVO_INLINE float fma1(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    const double product = static_cast<double>(a) * static_cast<double>(b);
    const double addend = static_cast<double>(c);
    double sum = product + addend;
    const double back = sum - product;
    const double error = (product - (sum - back)) + (addend - back);
    uint64_t u;
    memcpy(&u, &sum, 8);
    const bool finite = ((u >> 52) & 0x7ff) != 0x7ff;
    if (finite && error != 0 && (u & 1) == 0) {
        const bool grows = (error > 0) == (sum > 0);
        u = grows ? u + 1 : u - 1;
        memcpy(&sum, &u, 8);
    }
    return static_cast<float>(sum);
#endif
}

OCTAVO_INLINE float sqrt1(float x) {
#if defined(__SSE2__)
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#else
    return __builtin_sqrtf(x);
#endif
}

OCTAVO_INLINE float round_even1(float x) {
    const uint32_t sign = bits_of(x) & 0x80000000u;
    const float magnitude = float_of(bits_of(x) & 0x7fffffffu);
    if (!(magnitude < 0x1p23f)) return x;
    const float shifted = magnitude + 0x1p23f;
    return float_of(bits_of(shifted - 0x1p23f) | sign);
}

OCTAVO_INLINE int32_t to_i32_1(float x) {
    if (!(x >= -0x1p31f && x < 0x1p31f)) return INT32_MIN;
    return static_cast<int32_t>(round_even1(x));
}

// ---- memory -------------------------------------------------------------------------------------------------------

#define OCTAVO_LANES for (int j = 0; j < 16; ++j)

OCTAVO_INLINE f32x16 set1(float x) {
    f32x16 r;
    OCTAVO_LANES r.v[j] = x;
    return r;
}
OCTAVO_INLINE i32x16 set1(int32_t x) {
    i32x16 r;
    OCTAVO_LANES r.v[j] = x;
    return r;
}
OCTAVO_INLINE f32x16 zero_f32() { return set1(0.0f); }
OCTAVO_INLINE i32x16 zero_i32() { return set1(int32_t{0}); }
OCTAVO_INLINE i32x16 iota() {
    i32x16 r;
    OCTAVO_LANES r.v[j] = j;
    return r;
}
OCTAVO_INLINE f32x16 load(const float* p) {
    f32x16 r;
    memcpy(r.v, p, 64);
    return r;
}
OCTAVO_INLINE f32x16 load_first(const float* p, int n) {
    f32x16 r = zero_f32();
    if (n > 0) memcpy(r.v, p, 4 * static_cast<size_t>(n));
    return r;
}
OCTAVO_INLINE void store(float* p, f32x16 a) { memcpy(p, a.v, 64); }
OCTAVO_INLINE void store_first(float* p, f32x16 a, int n) {
    if (n > 0) memcpy(p, a.v, 4 * static_cast<size_t>(n));
}
OCTAVO_INLINE i32x16 load_i32(const void* p) {
    i32x16 r;
    memcpy(r.v, p, 64);
    return r;
}
// Eight lanes from `low`, eight from `high`.
OCTAVO_INLINE i32x16 load_i32_halves(const void* low, const void* high) {
    i32x16 r;
    memcpy(r.v, low, 32);
    memcpy(r.v + 8, high, 32);
    return r;
}
OCTAVO_INLINE i32x16 load_i32_first(const void* p, int n) {
    i32x16 r = zero_i32();
    if (n > 0) memcpy(r.v, p, 4 * static_cast<size_t>(n));
    return r;
}
OCTAVO_INLINE void store_i32(void* p, i32x16 a) { memcpy(p, a.v, 64); }
OCTAVO_INLINE void store_i32_first(void* p, i32x16 a, int n) {
    if (n > 0) memcpy(p, a.v, 4 * static_cast<size_t>(n));
}
OCTAVO_INLINE f32x16 load_bf16_first(const uint16_t* p, int n) {
    f32x16 r = zero_f32();
    for (int j = 0; j < n; ++j) r.v[j] = bf16_to_f32(p[j]);
    return r;
}
OCTAVO_INLINE f32x16 load_bf16(const uint16_t* p) { return load_bf16_first(p, 16); }
OCTAVO_INLINE void store_bf16_first(uint16_t* p, f32x16 a, int n) {
    for (int j = 0; j < n; ++j) p[j] = f32_to_bf16(a.v[j]);
}
OCTAVO_INLINE void store_bf16(uint16_t* p, f32x16 a) { store_bf16_first(p, a, 16); }
OCTAVO_INLINE void store_bf16_numbers(uint16_t* p, f32x16 a, f32x16 b) {
    store_bf16(p, a);
    store_bf16(p + 16, b);
}
OCTAVO_INLINE f32x16 load_f16(const uint16_t* p) {
    f32x16 r;
    OCTAVO_LANES r.v[j] = f16_to_f32(p[j]);
    return r;
}
OCTAVO_INLINE i32x16 load_i8(const int8_t* p) {
    i32x16 r;
    OCTAVO_LANES r.v[j] = p[j];
    return r;
}
OCTAVO_INLINE i32x16 load_u8(const uint8_t* p) {
    i32x16 r;
    OCTAVO_LANES r.v[j] = p[j];
    return r;
}
// Each byte of `indices` (0..15) becomes that byte of `table`, which is 16-byte aligned.
OCTAVO_INLINE i32x16 look_up(const int8_t* table, i32x16 indices) {
    uint8_t bytes[64];
    memcpy(bytes, indices.v, 64);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(table[byte]);
    memcpy(indices.v, bytes, 64);
    return indices;
}
OCTAVO_INLINE void store_i8(int8_t* p, i32x16 a) { OCTAVO_LANES p[j] = static_cast<int8_t>(a.v[j]); }
OCTAVO_INLINE void store_i16(int16_t* p, i32x16 a) { OCTAVO_LANES p[j] = static_cast<int16_t>(a.v[j]); }
OCTAVO_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

// ---- arithmetic ---------------------------------------------------------------------------------------------------

#define OCTAVO_MAP1(type, name, expression) \
    OCTAVO_INLINE type name(type a) {       \
        type r;                             \
        OCTAVO_LANES r.v[j] = expression;   \
        return r;                           \
    }
#define OCTAVO_MAP2(type, name, expression)   \
    OCTAVO_INLINE type name(type a, type b) { \
        type r;                               \
        OCTAVO_LANES r.v[j] = expression;     \
        return r;                             \
    }
OCTAVO_MAP2(f32x16, add, a.v[j] + b.v[j])
OCTAVO_MAP2(f32x16, sub, a.v[j] - b.v[j])
OCTAVO_MAP2(f32x16, mul, a.v[j] * b.v[j])
OCTAVO_MAP2(f32x16, div, a.v[j] / b.v[j])
OCTAVO_MAP2(f32x16, max, a.v[j] > b.v[j] ? a.v[j] : b.v[j])
OCTAVO_MAP2(f32x16, min, a.v[j] < b.v[j] ? a.v[j] : b.v[j])
OCTAVO_MAP1(f32x16, neg, float_of(bits_of(a.v[j]) ^ 0x80000000u))
OCTAVO_MAP1(f32x16, abs, float_of(bits_of(a.v[j]) & 0x7fffffffu))
OCTAVO_MAP1(f32x16, sqrt, sqrt1(a.v[j]))
OCTAVO_MAP1(f32x16, round_even, round_even1(a.v[j]))
OCTAVO_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    f32x16 r;
    OCTAVO_LANES r.v[j] = fma1(a.v[j], b.v[j], c.v[j]);
    return r;
}

// Unsigned inside: a sum that wraps is defined, as it is in the vector instructions.
OCTAVO_INLINE uint32_t u32(int32_t x) { return static_cast<uint32_t>(x); }
OCTAVO_INLINE int32_t s32(uint32_t x) { return static_cast<int32_t>(x); }
OCTAVO_MAP2(i32x16, add, s32(u32(a.v[j]) + u32(b.v[j])))
OCTAVO_MAP2(i32x16, sub, s32(u32(a.v[j]) - u32(b.v[j])))
OCTAVO_MAP2(i32x16, mul, s32(u32(a.v[j]) * u32(b.v[j])))
OCTAVO_MAP2(i32x16, max, a.v[j] > b.v[j] ? a.v[j] : b.v[j])
OCTAVO_MAP2(i32x16, min, a.v[j] < b.v[j] ? a.v[j] : b.v[j])
OCTAVO_MAP2(i32x16, bit_and, a.v[j] & b.v[j])
OCTAVO_MAP2(i32x16, bit_or, a.v[j] | b.v[j])
OCTAVO_MAP2(i32x16, bit_xor, a.v[j] ^ b.v[j])
template <int n>
OCTAVO_MAP1(i32x16, shift_left, s32(u32(a.v[j]) << n))
template <int n>
OCTAVO_MAP1(i32x16, shift_right, s32(u32(a.v[j]) >> n))
template <int n>
OCTAVO_MAP1(i32x16, shift_right_signed, a.v[j] >> n)
// ---- compare ------------------------------------------------------------------------------------------------------

#define OCTAVO_COMPARE(type, name, op)                                    \
    OCTAVO_INLINE mask16 name(type a, type b) {                           \
        mask16 r{0};                                                      \
        OCTAVO_LANES r.v |= static_cast<uint32_t>(a.v[j] op b.v[j]) << j; \
        return r;                                                         \
    }
OCTAVO_COMPARE(f32x16, lt, <) OCTAVO_COMPARE(f32x16, le, <=) OCTAVO_COMPARE(f32x16, eq, ==)
    OCTAVO_COMPARE(i32x16, lt, <) OCTAVO_COMPARE(i32x16, le, <=) OCTAVO_COMPARE(i32x16, eq, ==) OCTAVO_INLINE f32x16
    select(mask16 m, f32x16 a, f32x16 b) {
    f32x16 r;
    OCTAVO_LANES r.v[j] = (m.v >> j) & 1u ? a.v[j] : b.v[j];
    return r;
}
OCTAVO_INLINE i32x16 select(mask16 m, i32x16 a, i32x16 b) {
    i32x16 r;
    OCTAVO_LANES r.v[j] = (m.v >> j) & 1u ? a.v[j] : b.v[j];
    return r;
}
OCTAVO_INLINE mask16 mask_first(int n) { return {(1u << n) - 1u}; }
OCTAVO_INLINE mask16 mask_and(mask16 a, mask16 b) { return {a.v & b.v}; }
OCTAVO_INLINE mask16 mask_or(mask16 a, mask16 b) { return {a.v | b.v}; }
OCTAVO_INLINE mask16 mask_not(mask16 a) { return {~a.v & 0xffffu}; }
OCTAVO_INLINE bool any(mask16 a) { return a.v != 0; }
OCTAVO_INLINE uint32_t bits(mask16 a) { return a.v; }

// ---- convert ------------------------------------------------------------------------------------------------------

OCTAVO_INLINE f32x16 to_f32(i32x16 a) {
    f32x16 r;
    OCTAVO_LANES r.v[j] = static_cast<float>(a.v[j]);
    return r;
}
OCTAVO_INLINE i32x16 to_i32(f32x16 a) {
    i32x16 r;
    OCTAVO_LANES r.v[j] = to_i32_1(a.v[j]);
    return r;
}
OCTAVO_INLINE i32x16 as_i32(f32x16 a) {
    i32x16 r;
    memcpy(r.v, a.v, 64);
    return r;
}
OCTAVO_INLINE f32x16 as_f32(i32x16 a) {
    f32x16 r;
    memcpy(r.v, a.v, 64);
    return r;
}
OCTAVO_INLINE i32x16 bf16_bits(f32x16 a) {
    i32x16 r;
    OCTAVO_LANES r.v[j] = f32_to_bf16(a.v[j]);
    return r;
}

// p * 2^n for an integer n, where that is normal; 0 where x <= -126.
OCTAVO_INLINE f32x16 times_power(f32x16 p, f32x16 n, f32x16 x) {
    const f32x16 scaled = as_f32(add(as_i32(p), shift_left<23>(to_i32(n))));
    return select(le(x, set1(-126.0f)), zero_f32(), scaled);
}

// ---- folds --------------------------------------------------------------------------------------------------------

#define OCTAVO_FOLD(type, name, lane, expression)    \
    OCTAVO_INLINE lane name(type a) {                \
        for (int width = 8; width > 0; width /= 2) { \
            for (int j = 0; j < width; ++j) {        \
                const lane x = a.v[j];               \
                const lane y = a.v[j + width];       \
                a.v[j] = expression;                 \
            }                                        \
        }                                            \
        return a.v[0];                               \
    }
OCTAVO_FOLD(f32x16, fold_add, float, x + y)
OCTAVO_FOLD(f32x16, fold_max, float, x > y ? x : y)
OCTAVO_FOLD(f32x16, fold_min, float, x < y ? x : y)
OCTAVO_FOLD(i32x16, fold_add_i32, int32_t, s32(u32(x) + u32(y)))
OCTAVO_FOLD(i32x16, fold_max_i32, int32_t, x > y ? x : y)

OCTAVO_INLINE i32x16 add_neighbours(i32x16 a, i32x16 b) {
    i32x16 out;
    for (int i = 0; i < 8; i++) {
        out.v[i] = a.v[2 * i] + a.v[2 * i + 1];
        out.v[8 + i] = b.v[2 * i] + b.v[2 * i + 1];
    }
    return out;
}
OCTAVO_INLINE i32x16 add_bytes(i32x16 codes) {
    i32x16 out;
    for (int i = 0; i < 16; i++) {
        int8_t four[4];
        memcpy(four, &codes.v[i], 4);
        out.v[i] = four[0] + four[1] + four[2] + four[3];
    }
    return out;
}

// ---- bf16 pairs ---------------------------------------------------------------------------------------------------

OCTAVO_INLINE i32x16 set1_pair(const uint16_t* p) {
    int32_t pair;
    memcpy(&pair, p, 4);
    return set1(pair);
}
OCTAVO_INLINE f32x16 pair_even(i32x16 a) { return as_f32(shift_left<16>(a)); }
OCTAVO_INLINE f32x16 pair_odd(i32x16 a) { return as_f32(bit_and(a, set1(s32(0xffff0000u)))); }
OCTAVO_INLINE f32x16 pair_fma(f32x16 acc, i32x16 a, i32x16 b) {
    return fma(pair_even(a), pair_even(b), fma(pair_odd(a), pair_odd(b), acc));
}
OCTAVO_INLINE i32x16 make_pairs(f32x16 even, f32x16 odd) {
    return bit_or(bf16_bits(even), shift_left<16>(bf16_bits(odd)));
}

// ---- int16 pairs --------------------------------------------------------------------------------------------------

OCTAVO_INLINE i32x16 load_code_pairs(const int8_t* p) {
    i32x16 r;
    OCTAVO_LANES r.v[j] = s32((static_cast<uint32_t>(p[2 * j]) & 0xffffu) | static_cast<uint32_t>(p[2 * j + 1]) << 16);
    return r;
}
OCTAVO_INLINE i32x16 pair_dot(i32x16 acc, i32x16 a, i32x16 b) {
    i32x16 r;
    OCTAVO_LANES r.v[j] =
        acc.v[j] + static_cast<int16_t>(a.v[j]) * static_cast<int16_t>(b.v[j]) + (a.v[j] >> 16) * (b.v[j] >> 16);
    return r;
}

#undef OCTAVO_MAP1
#undef OCTAVO_MAP2
#undef OCTAVO_COMPARE
#undef OCTAVO_FOLD

}  // namespace octavo::OCTAVO_ISA_NS
