// AVX2 + FMA + F16C: sixteen lanes are two ymm registers. Included by simd.h only.
#pragma once

#include <immintrin.h>

namespace octavo::OCTAVO_ISA_NS {

struct f32x16 {
    __m256 lo, hi;
};
struct i32x16 {
    __m256i lo, hi;
};
struct mask16 {
    __m256 lo, hi;  // all ones or all zeros a lane
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

OCTAVO_INLINE __m256i halves(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
OCTAVO_INLINE f32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
OCTAVO_INLINE i32x16 set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
OCTAVO_INLINE f32x16 zero_f32() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
OCTAVO_INLINE i32x16 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
OCTAVO_INLINE i32x16 iota() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
// All ones in the lanes below n.
OCTAVO_INLINE i32x16 lanes_below(int n) {
    const __m256i limit = _mm256_set1_epi32(n);
    const i32x16 lane = iota();
    return {_mm256_cmpgt_epi32(limit, lane.lo), _mm256_cmpgt_epi32(limit, lane.hi)};
}
OCTAVO_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
// All lanes where n >= 16, and then no masks: a masked store takes tens of cycles on Zen.
OCTAVO_INLINE f32x16 load_first(const float* p, int n) {
    if (n >= 16) return load(p);
    const i32x16 m = lanes_below(n);
    return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
OCTAVO_INLINE void store(float* p, f32x16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
OCTAVO_INLINE void store_first(float* p, f32x16 a, int n) {
    if (n >= 16) return store(p, a);
    const i32x16 m = lanes_below(n);
    _mm256_maskstore_ps(p, m.lo, a.lo);
    _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}
OCTAVO_INLINE i32x16 load_i32(const void* p) { return {halves(p), halves(static_cast<const char*>(p) + 32)}; }
// Eight lanes from `low`, eight from `high`.
OCTAVO_INLINE i32x16 load_i32_halves(const void* low, const void* high) { return {halves(low), halves(high)}; }
OCTAVO_INLINE i32x16 load_i32_first(const void* p, int n) {
    const i32x16 m = lanes_below(n);
    const int* q = static_cast<const int*>(p);
    return {_mm256_maskload_epi32(q, m.lo), _mm256_maskload_epi32(q + 8, m.hi)};
}
OCTAVO_INLINE void store_i32(void* p, i32x16 a) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, a.hi);
}
OCTAVO_INLINE void store_i32_first(void* p, i32x16 a, int n) {
    const i32x16 m = lanes_below(n);
    int* q = static_cast<int*>(p);
    _mm256_maskstore_epi32(q, m.lo, a.lo);
    _mm256_maskstore_epi32(q + 8, m.hi, a.hi);
}
OCTAVO_INLINE f32x16 load_bf16(const uint16_t* p) {
    const __m256i v = halves(p);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)), 16))};
}
OCTAVO_INLINE f32x16 load_bf16_first(const uint16_t* p, int n) {
    alignas(32) uint16_t whole[16] = {};
    if (n > 0) memcpy(whole, p, 2 * static_cast<size_t>(n));
    return load_bf16(whole);
}
OCTAVO_INLINE f32x16 load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
OCTAVO_INLINE i32x16 load_i8(const int8_t* p) {
    return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
OCTAVO_INLINE i32x16 load_u8(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
// Each byte of `indices` (0..15) becomes that byte of `table`, which is 16-byte aligned.
OCTAVO_INLINE i32x16 look_up(const int8_t* table, i32x16 indices) {
    const __m256i t = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(t, indices.lo), _mm256_shuffle_epi8(t, indices.hi)};
}
// The lanes must lie in -128..127.
OCTAVO_INLINE void store_i8(int8_t* p, i32x16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
// The lanes must lie in the range of an int16.
OCTAVO_INLINE void store_i16(int16_t* p, i32x16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words);
}
OCTAVO_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

// ---- arithmetic ---------------------------------------------------------------------------------------------------

#define OCTAVO_MAP2(type, name, op) \
    OCTAVO_INLINE type name(type a, type b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
OCTAVO_MAP2(f32x16, add, _mm256_add_ps)
OCTAVO_MAP2(f32x16, sub, _mm256_sub_ps)
OCTAVO_MAP2(f32x16, mul, _mm256_mul_ps)
OCTAVO_MAP2(f32x16, div, _mm256_div_ps)
OCTAVO_MAP2(f32x16, max, _mm256_max_ps)
OCTAVO_MAP2(f32x16, min, _mm256_min_ps)
OCTAVO_MAP2(i32x16, add, _mm256_add_epi32)
OCTAVO_MAP2(i32x16, sub, _mm256_sub_epi32)
OCTAVO_MAP2(i32x16, mul, _mm256_mullo_epi32)
OCTAVO_MAP2(i32x16, max, _mm256_max_epi32)
OCTAVO_MAP2(i32x16, min, _mm256_min_epi32)
OCTAVO_MAP2(i32x16, bit_and, _mm256_and_si256)
OCTAVO_MAP2(i32x16, bit_or, _mm256_or_si256)
OCTAVO_MAP2(i32x16, bit_xor, _mm256_xor_si256)
#undef OCTAVO_MAP2

OCTAVO_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
OCTAVO_INLINE f32x16 neg(f32x16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
OCTAVO_INLINE f32x16 abs(f32x16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
OCTAVO_INLINE f32x16 sqrt(f32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
OCTAVO_INLINE f32x16 round_even(f32x16 a) {
    return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
template <int n>
OCTAVO_INLINE i32x16 shift_left(i32x16 a) {
    return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
template <int n>
OCTAVO_INLINE i32x16 shift_right(i32x16 a) {
    return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}
template <int n>
OCTAVO_INLINE i32x16 shift_right_signed(i32x16 a) {
    return {_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
}

// ---- compare ------------------------------------------------------------------------------------------------------

OCTAVO_INLINE mask16 as_mask(i32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
OCTAVO_INLINE mask16 lt(f32x16 a, f32x16 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
OCTAVO_INLINE mask16 le(f32x16 a, f32x16 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
}
OCTAVO_INLINE mask16 eq(f32x16 a, f32x16 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
OCTAVO_INLINE mask16 lt(i32x16 a, i32x16 b) {
    return as_mask({_mm256_cmpgt_epi32(b.lo, a.lo), _mm256_cmpgt_epi32(b.hi, a.hi)});
}
OCTAVO_INLINE mask16 eq(i32x16 a, i32x16 b) {
    return as_mask({_mm256_cmpeq_epi32(a.lo, b.lo), _mm256_cmpeq_epi32(a.hi, b.hi)});
}
OCTAVO_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) {
    return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
OCTAVO_INLINE mask16 mask_first(int n) { return as_mask(lanes_below(n)); }
OCTAVO_INLINE mask16 mask_and(mask16 a, mask16 b) { return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)}; }
OCTAVO_INLINE mask16 mask_or(mask16 a, mask16 b) { return {_mm256_or_ps(a.lo, b.lo), _mm256_or_ps(a.hi, b.hi)}; }
OCTAVO_INLINE mask16 mask_not(mask16 a) {
    const __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    return {_mm256_xor_ps(a.lo, ones), _mm256_xor_ps(a.hi, ones)};
}
OCTAVO_INLINE mask16 le(i32x16 a, i32x16 b) { return mask_not(lt(b, a)); }
OCTAVO_INLINE uint32_t bits(mask16 a) {
    return static_cast<uint32_t>(_mm256_movemask_ps(a.lo)) | static_cast<uint32_t>(_mm256_movemask_ps(a.hi)) << 8;
}
OCTAVO_INLINE bool any(mask16 a) { return bits(a) != 0; }

// ---- convert ------------------------------------------------------------------------------------------------------

OCTAVO_INLINE f32x16 to_f32(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
OCTAVO_INLINE i32x16 to_i32(f32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
OCTAVO_INLINE i32x16 as_i32(f32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
OCTAVO_INLINE f32x16 as_f32(i32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
OCTAVO_INLINE i32x16 select(mask16 m, i32x16 a, i32x16 b) { return as_i32(select(m, as_f32(a), as_f32(b))); }
OCTAVO_INLINE i32x16 bf16_bits(f32x16 a) {
    const i32x16 u = as_i32(a);
    const i32x16 odd = bit_and(shift_right<16>(u), set1(int32_t{1}));
    const i32x16 rounded = shift_right<16>(add(add(u, set1(int32_t{0x7fff})), odd));
    return select(eq(a, a), rounded, set1(int32_t{0x7fc0}));
}
OCTAVO_INLINE void store_bf16(uint16_t* p, f32x16 a) {
    const i32x16 h = bf16_bits(a);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(h.lo, h.hi), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words);
}
OCTAVO_INLINE void store_bf16_numbers(uint16_t* p, f32x16 a, f32x16 b) {
    store_bf16(p, a);
    store_bf16(p + 16, b);
}
OCTAVO_INLINE void store_bf16_first(uint16_t* p, f32x16 a, int n) {
    alignas(32) uint16_t whole[16];
    store_bf16(whole, a);
    if (n > 0) memcpy(p, whole, 2 * static_cast<size_t>(n));
}

// p * 2^n for an integer n, where that is normal; 0 where x <= -126.
OCTAVO_INLINE f32x16 times_power(f32x16 p, f32x16 n, f32x16 x) {
    const f32x16 scaled = as_f32(add(as_i32(p), shift_left<23>(to_i32(n))));
    return select(le(x, set1(-126.0f)), zero_f32(), scaled);
}

// ---- folds --------------------------------------------------------------------------------------------------------

OCTAVO_INLINE float fold_add(f32x16 a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
OCTAVO_INLINE float fold_max(f32x16 a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
OCTAVO_INLINE float fold_min(f32x16 a) {
    const __m256 eight = _mm256_min_ps(a.lo, a.hi);
    const __m128 four = _mm_min_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));
}
OCTAVO_INLINE int32_t fold_add_i32(i32x16 a) {
    const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

OCTAVO_INLINE int32_t fold_max_i32(i32x16 a) {
    const __m256i eight = _mm256_max_epi32(a.lo, a.hi);
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

OCTAVO_INLINE i32x16 add_neighbours(i32x16 a, i32x16 b) {
    return {_mm256_permute4x64_epi64(_mm256_hadd_epi32(a.lo, a.hi), 0xd8),
            _mm256_permute4x64_epi64(_mm256_hadd_epi32(b.lo, b.hi), 0xd8)};
}
OCTAVO_INLINE i32x16 add_bytes(i32x16 codes) {
    const __m256i ones = _mm256_set1_epi8(1), pairs = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(_mm256_maddubs_epi16(ones, codes.lo), pairs),
            _mm256_madd_epi16(_mm256_maddubs_epi16(ones, codes.hi), pairs)};
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
    return fma(pair_even(a), pair_even(b), fma(pair_odd(a), pair_odd(b), acc));
}
OCTAVO_INLINE i32x16 make_pairs(f32x16 even, f32x16 odd) {
    return bit_or(bf16_bits(even), shift_left<16>(bf16_bits(odd)));
}

// ---- int16 pairs --------------------------------------------------------------------------------------------------

OCTAVO_INLINE i32x16 load_code_pairs(const int8_t* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
OCTAVO_INLINE i32x16 pair_dot(i32x16 acc, i32x16 a, i32x16 b) {
    return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)),
            _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
}

}  // namespace octavo::OCTAVO_ISA_NS
