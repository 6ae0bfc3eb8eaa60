// AVX-512 F+BW+VL+DQ+VNNI, and BF16 in its own variant: sixteen lanes are one zmm register. Included by simd.h only.
//
// OCTAVO_EMULATE_AVX512 (a test build on a CPU without AVX-512) takes the intrinsics from SIMDe instead.
#pragma once

#if defined(OCTAVO_EMULATE_AVX512)
#include "octavo/simd_emulate.h"
#else
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_ISA_NS {

struct f32x16 {
    __m512 v;
};
struct i32x16 {
    __m512i v;
};
struct mask16 {
    __mmask16 v;
};

// ---- one number ---------------------------------------------------------------------------------------------------

OCTAVO_INLINE float fma1(float a, float b, float c) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
OCTAVO_INLINE float sqrt1(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
OCTAVO_INLINE float round_even1(float x) {
    const __m128 v = _mm_set_ss(x);
    return _mm_cvtss_f32(_mm_round_ss(v, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
OCTAVO_INLINE int32_t to_i32_1(float x) { return _mm_cvtss_si32(_mm_set_ss(x)); }

// ---- memory -------------------------------------------------------------------------------------------------------

OCTAVO_INLINE __mmask16 lanes_below(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
OCTAVO_INLINE f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
OCTAVO_INLINE i32x16 set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
OCTAVO_INLINE f32x16 zero_f32() { return {_mm512_setzero_ps()}; }
OCTAVO_INLINE i32x16 zero_i32() { return {_mm512_setzero_si512()}; }
OCTAVO_INLINE i32x16 iota() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
OCTAVO_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCTAVO_INLINE f32x16 load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(lanes_below(n), p)}; }
OCTAVO_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
OCTAVO_INLINE void store_first(float* p, f32x16 a, int n) { _mm512_mask_storeu_ps(p, lanes_below(n), a.v); }
OCTAVO_INLINE i32x16 load_i32(const void* p) { return {_mm512_loadu_si512(p)}; }
// Eight lanes from `low`, eight from `high`.
OCTAVO_INLINE i32x16 load_i32_halves(const void* low, const void* high) {
    const __m512i first = _mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(low)));
    return {_mm512_inserti64x4(first, _mm256_loadu_si256(static_cast<const __m256i*>(high)), 1)};
}
OCTAVO_INLINE i32x16 load_i32_first(const void* p, int n) { return {_mm512_maskz_loadu_epi32(lanes_below(n), p)}; }
OCTAVO_INLINE void store_i32(void* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
OCTAVO_INLINE void store_i32_first(void* p, i32x16 a, int n) { _mm512_mask_storeu_epi32(p, lanes_below(n), a.v); }
OCTAVO_INLINE f32x16 widen_bf16(__m256i v) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16))};
}
OCTAVO_INLINE f32x16 load_bf16(const uint16_t* p) {
    return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
OCTAVO_INLINE f32x16 load_bf16_first(const uint16_t* p, int n) {
    return widen_bf16(_mm256_maskz_loadu_epi16(lanes_below(n), p));
}
OCTAVO_INLINE f32x16 load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
OCTAVO_INLINE i32x16 load_i8(const int8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
OCTAVO_INLINE i32x16 load_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// Each byte of `indices` (0..15) becomes that byte of `table`, which is 16-byte aligned.
OCTAVO_INLINE i32x16 look_up(const int8_t* table, i32x16 indices) {
    const __m512i t = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm512_shuffle_epi8(t, indices.v)};
}
// The lanes must lie in -128..127.
OCTAVO_INLINE void store_i8(int8_t* p, i32x16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
// The lanes must lie in the range of an int16.
OCTAVO_INLINE void store_i16(int16_t* p, i32x16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
OCTAVO_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

// ---- arithmetic ---------------------------------------------------------------------------------------------------

#define OCTAVO_MAP2(type, name, op) \
    OCTAVO_INLINE type name(type a, type b) { return {op(a.v, b.v)}; }
OCTAVO_MAP2(f32x16, add, _mm512_add_ps)
OCTAVO_MAP2(f32x16, sub, _mm512_sub_ps)
OCTAVO_MAP2(f32x16, mul, _mm512_mul_ps)
OCTAVO_MAP2(f32x16, div, _mm512_div_ps)
OCTAVO_MAP2(f32x16, max, _mm512_max_ps)
OCTAVO_MAP2(f32x16, min, _mm512_min_ps)
OCTAVO_MAP2(i32x16, add, _mm512_add_epi32)
OCTAVO_MAP2(i32x16, sub, _mm512_sub_epi32)
OCTAVO_MAP2(i32x16, mul, _mm512_mullo_epi32)
OCTAVO_MAP2(i32x16, max, _mm512_max_epi32)
OCTAVO_MAP2(i32x16, min, _mm512_min_epi32)
OCTAVO_MAP2(i32x16, bit_and, _mm512_and_si512)
OCTAVO_MAP2(i32x16, bit_or, _mm512_or_si512)
OCTAVO_MAP2(i32x16, bit_xor, _mm512_xor_si512)
#undef OCTAVO_MAP2

OCTAVO_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
OCTAVO_INLINE f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
OCTAVO_INLINE f32x16 round_even(f32x16 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
template <int n>
OCTAVO_INLINE i32x16 shift_left(i32x16 a) {
    return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
OCTAVO_INLINE i32x16 shift_right(i32x16 a) {
    return {_mm512_srli_epi32(a.v, n)};
}
template <int n>
OCTAVO_INLINE i32x16 shift_right_signed(i32x16 a) {
    return {_mm512_srai_epi32(a.v, n)};
}
OCTAVO_INLINE i32x16 as_i32(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
OCTAVO_INLINE f32x16 as_f32(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
OCTAVO_INLINE f32x16 neg(f32x16 a) { return as_f32(bit_xor(as_i32(a), set1(INT32_MIN))); }
OCTAVO_INLINE f32x16 abs(f32x16 a) { return as_f32(bit_and(as_i32(a), set1(INT32_MAX))); }

// ---- compare ------------------------------------------------------------------------------------------------------

OCTAVO_INLINE mask16 lt(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
OCTAVO_INLINE mask16 le(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
OCTAVO_INLINE mask16 eq(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
OCTAVO_INLINE mask16 lt(i32x16 a, i32x16 b) { return {_mm512_cmpgt_epi32_mask(b.v, a.v)}; }
OCTAVO_INLINE mask16 eq(i32x16 a, i32x16 b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
OCTAVO_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
OCTAVO_INLINE i32x16 select(mask16 m, i32x16 a, i32x16 b) { return {_mm512_mask_blend_epi32(m.v, b.v, a.v)}; }
OCTAVO_INLINE mask16 mask_first(int n) { return {lanes_below(n)}; }
OCTAVO_INLINE mask16 mask_and(mask16 a, mask16 b) { return {static_cast<__mmask16>(a.v & b.v)}; }
OCTAVO_INLINE mask16 mask_or(mask16 a, mask16 b) { return {static_cast<__mmask16>(a.v | b.v)}; }
OCTAVO_INLINE mask16 mask_not(mask16 a) { return {static_cast<__mmask16>(~a.v)}; }
OCTAVO_INLINE mask16 le(i32x16 a, i32x16 b) { return mask_not(lt(b, a)); }
OCTAVO_INLINE uint32_t bits(mask16 a) { return a.v; }
OCTAVO_INLINE bool any(mask16 a) { return a.v != 0; }

// ---- convert ------------------------------------------------------------------------------------------------------

OCTAVO_INLINE f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
OCTAVO_INLINE i32x16 to_i32(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
OCTAVO_INLINE i32x16 bf16_bits(f32x16 a) {
    const i32x16 u = as_i32(a);
    const i32x16 odd = bit_and(shift_right<16>(u), set1(int32_t{1}));
    const i32x16 rounded = shift_right<16>(add(add(u, set1(int32_t{0x7fff})), odd));
    return select(eq(a, a), rounded, set1(int32_t{0x7fc0}));
}
OCTAVO_INLINE void store_bf16(uint16_t* p, f32x16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bf16_bits(a).v));
}
// For lanes that are 0 or normal: the instruction takes denormals as 0 and keeps the bits of a NaN.
OCTAVO_INLINE void store_bf16_numbers(uint16_t* p, f32x16 a, f32x16 b) {
#if defined(OCTAVO_ISA_AVX512BF16) && !defined(OCTAVO_EMULATE_AVX512)
    _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v)));
#else
    store_bf16(p, a);
    store_bf16(p + 16, b);
#endif
}
OCTAVO_INLINE void store_bf16_first(uint16_t* p, f32x16 a, int n) {
    _mm256_mask_storeu_epi16(p, lanes_below(n), _mm512_cvtepi32_epi16(bf16_bits(a).v));
}

// p * 2^n for an integer n, where that is normal; 0 where x <= -126.
OCTAVO_INLINE f32x16 times_power(f32x16 p, f32x16 n, f32x16 x) {
#if defined(OCTAVO_EMULATE_AVX512)
    const f32x16 scaled = as_f32(add(as_i32(p), shift_left<23>(to_i32(n))));
    return select(le(x, set1(-126.0f)), zero_f32(), scaled);
#else
    const __mmask16 more = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-126.0f), _CMP_NLE_UQ);
    return {_mm512_maskz_scalef_ps(more, p.v, n.v)};
#endif
}

// ---- folds --------------------------------------------------------------------------------------------------------

// The upper eight lanes brought down; the fold below eight lanes is the same 256-bit code as AVX2's.
OCTAVO_INLINE __m256 upper(f32x16 a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)); }
OCTAVO_INLINE __m256 lower(f32x16 a) { return _mm512_castps512_ps256(a.v); }
OCTAVO_INLINE float fold_add(f32x16 a) {
    const __m256 eight = _mm256_add_ps(lower(a), upper(a));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
OCTAVO_INLINE float fold_max(f32x16 a) {
    const __m256 eight = _mm256_max_ps(lower(a), upper(a));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
OCTAVO_INLINE float fold_min(f32x16 a) {
    const __m256 eight = _mm256_min_ps(lower(a), upper(a));
    const __m128 four = _mm_min_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));
}
OCTAVO_INLINE int32_t fold_add_i32(i32x16 a) {
    const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

OCTAVO_INLINE int32_t fold_max_i32(i32x16 a) {
    const __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

// Lanes 0..7: neighbours of a added up; 8..15: those of b.
OCTAVO_INLINE i32x16 add_neighbours(i32x16 a, i32x16 b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return {_mm512_add_epi32(_mm512_permutex2var_epi32(a.v, even, b.v), _mm512_permutex2var_epi32(a.v, odd, b.v))};
}
// Each lane: the sum of its four int8.
OCTAVO_INLINE i32x16 add_bytes(i32x16 codes) {
    const __m512i ones = _mm512_set1_epi8(1);
    return {_mm512_madd_epi16(_mm512_maddubs_epi16(ones, codes.v), _mm512_set1_epi16(1))};
}

// ---- bf16 pairs ---------------------------------------------------------------------------------------------------

OCTAVO_INLINE i32x16 set1_pair(const uint16_t* p) {
    int32_t pair;
    memcpy(&pair, p, 4);
    return set1(pair);
}
OCTAVO_INLINE f32x16 pair_even(i32x16 a) { return as_f32(shift_left<16>(a)); }
OCTAVO_INLINE f32x16 pair_odd(i32x16 a) { return as_f32(bit_and(a, set1(static_cast<int32_t>(0xffff0000u)))); }
OCTAVO_INLINE f32x16 pair_fma(f32x16 acc, i32x16 a, i32x16 b) {
#if defined(OCTAVO_ISA_AVX512BF16) && !defined(OCTAVO_EMULATE_AVX512)
    // By hand, as vpdpbusd below: g++ 12 moves and spills the accumulators of the intrinsic.
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc.v) : "v"(a.v), "v"(b.v));
    return acc;
#else
    return fma(pair_even(a), pair_even(b), fma(pair_odd(a), pair_odd(b), acc));
#endif
}
OCTAVO_INLINE i32x16 make_pairs(f32x16 even, f32x16 odd) {
    return bit_or(bf16_bits(even), shift_left<16>(bf16_bits(odd)));
}

// ---- int16 pairs --------------------------------------------------------------------------------------------------

OCTAVO_INLINE i32x16 load_code_pairs(const int8_t* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
OCTAVO_INLINE i32x16 pair_dot(i32x16 acc, i32x16 a, i32x16 b) {
#if defined(OCTAVO_EMULATE_AVX512)
    return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(a.v, b.v))};
#else
    asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(a.v), "v"(b.v));  // by hand as above
    return acc;
#endif
}

}  // namespace octavo::OCTAVO_ISA_NS
