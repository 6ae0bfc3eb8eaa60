// AVX-512 intrinsics on a CPU that has none, for tests only (OCTAVO_EMULATE_AVX512): SIMDe, plus what its packaged
// version lacks. It proves the logic of simd_avx512.h and of the kernels above it, not the inline assembly.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <immintrin.h>
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>

namespace octavo::OCTAVO_ISA_NS {

template <class T>
struct EmulatedLanes {
    T v[64 / sizeof(T)];
};
template <class T, class V>
static inline EmulatedLanes<T> lanes_of(const V& x) {
    EmulatedLanes<T> r;
    memcpy(&r, &x, sizeof x);
    return r;
}
template <class V, class T>
static inline V vector_of(const EmulatedLanes<T>& x) {
    V r;
    memcpy(&r, &x, sizeof r);
    return r;
}

#define OCTAVO_EMULATE_LOAD(name, type, lane, count)                     \
    static inline type name(unsigned mask, const void* p) {              \
        EmulatedLanes<lane> r{};                                         \
        for (int j = 0; j < count; ++j) {                                \
            if (mask >> j & 1u) r.v[j] = static_cast<const lane*>(p)[j]; \
        }                                                                \
        return vector_of<type>(r);                                       \
    }
#define OCTAVO_EMULATE_STORE(name, type, lane, count)              \
    static inline void name(void* p, unsigned mask, type x) {      \
        const EmulatedLanes<lane> r = lanes_of<lane>(x);           \
        for (int j = 0; j < count; ++j) {                          \
            if (mask >> j & 1u) static_cast<lane*>(p)[j] = r.v[j]; \
        }                                                          \
    }
#define OCTAVO_EMULATE_CONVERT(name, from, lane_from, to, lane_to)          \
    static inline to name(from x) {                                         \
        const EmulatedLanes<lane_from> a = lanes_of<lane_from>(x);          \
        EmulatedLanes<lane_to> r;                                           \
        for (int j = 0; j < 16; ++j) r.v[j] = static_cast<lane_to>(a.v[j]); \
        return vector_of<to>(r);                                            \
    }
#undef _mm512_maskz_loadu_ps
#undef _mm512_maskz_loadu_epi32
#undef _mm256_maskz_loadu_epi16
#undef _mm512_mask_storeu_ps
#undef _mm512_mask_storeu_epi32
#undef _mm256_mask_storeu_epi16
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_epi8
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtph_ps
#undef _mm512_srai_epi32
#undef _mm512_cvtepi8_epi16
#undef _mm512_madd_epi16
#define _mm512_maskz_loadu_ps emulated_maskz_loadu_ps
#define _mm512_maskz_loadu_epi32 emulated_maskz_loadu_epi32
#define _mm256_maskz_loadu_epi16 emulated_maskz_loadu_epi16
#define _mm512_mask_storeu_ps emulated_mask_storeu_ps
#define _mm512_mask_storeu_epi32 emulated_mask_storeu_epi32
#define _mm256_mask_storeu_epi16 emulated_mask_storeu_epi16
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#define _mm512_cvtepi8_epi32 emulated_cvtepi8_epi32
#define _mm512_cvtepu8_epi32 emulated_cvtepu8_epi32
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_srai_epi32 emulated_srai_epi32
#define _mm512_cvtepi8_epi16 emulated_cvtepi8_epi16
#define _mm512_madd_epi16 emulated_madd_epi16
OCTAVO_EMULATE_LOAD(emulated_maskz_loadu_ps, __m512, float, 16)
OCTAVO_EMULATE_LOAD(emulated_maskz_loadu_epi32, __m512i, int32_t, 16)
OCTAVO_EMULATE_LOAD(emulated_maskz_loadu_epi16, __m256i, uint16_t, 16)
OCTAVO_EMULATE_STORE(emulated_mask_storeu_ps, __m512, float, 16)
OCTAVO_EMULATE_STORE(emulated_mask_storeu_epi32, __m512i, int32_t, 16)
OCTAVO_EMULATE_STORE(emulated_mask_storeu_epi16, __m256i, uint16_t, 16)
OCTAVO_EMULATE_CONVERT(emulated_cvtepi32_ps, __m512i, int32_t, __m512, float)
OCTAVO_EMULATE_CONVERT(emulated_cvtepi8_epi32, __m128i, int8_t, __m512i, int32_t)
OCTAVO_EMULATE_CONVERT(emulated_cvtepu8_epi32, __m128i, uint8_t, __m512i, int32_t)
OCTAVO_EMULATE_CONVERT(emulated_cvtepu16_epi32, __m256i, uint16_t, __m512i, uint32_t)
OCTAVO_EMULATE_CONVERT(emulated_cvtepi32_epi8, __m512i, int32_t, __m128i, int8_t)
OCTAVO_EMULATE_CONVERT(emulated_cvtepi32_epi16, __m512i, int32_t, __m256i, int16_t)
static inline __m512i emulated_cvtps_epi32(__m512 x) {
    const EmulatedLanes<float> a = lanes_of<float>(x);
    EmulatedLanes<int32_t> r;
    for (int j = 0; j < 16; ++j) r.v[j] = _mm_cvtss_si32(_mm_set_ss(a.v[j]));
    return vector_of<__m512i>(r);
}
static inline __m512 emulated_cvtph_ps(__m256i x) {
    const EmulatedLanes<uint16_t> a = lanes_of<uint16_t>(x);
    EmulatedLanes<float> r;
    for (int j = 0; j < 16; ++j) r.v[j] = f16_to_f32(a.v[j]);
    return vector_of<__m512>(r);
}
static inline __m512i emulated_srai_epi32(__m512i x, int n) {
    const EmulatedLanes<int32_t> a = lanes_of<int32_t>(x);
    EmulatedLanes<int32_t> r;
    for (int j = 0; j < 16; ++j) r.v[j] = a.v[j] >> n;
    return vector_of<__m512i>(r);
}
static inline __m512i emulated_cvtepi8_epi16(__m256i x) {
    const EmulatedLanes<int8_t> a = lanes_of<int8_t>(x);
    EmulatedLanes<int16_t> r;
    for (int j = 0; j < 32; ++j) r.v[j] = a.v[j];
    return vector_of<__m512i>(r);
}
static inline __m512i emulated_madd_epi16(__m512i x, __m512i y) {
    const EmulatedLanes<int16_t> a = lanes_of<int16_t>(x), b = lanes_of<int16_t>(y);
    EmulatedLanes<int32_t> r;
    for (int j = 0; j < 16; ++j) r.v[j] = a.v[2 * j] * b.v[2 * j] + a.v[2 * j + 1] * b.v[2 * j + 1];
    return vector_of<__m512i>(r);
}
#undef OCTAVO_EMULATE_LOAD
#undef OCTAVO_EMULATE_STORE
#undef OCTAVO_EMULATE_CONVERT

}  // namespace octavo::OCTAVO_ISA_NS
