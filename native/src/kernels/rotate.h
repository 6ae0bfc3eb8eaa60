// The rotation of heads that an int8 cache holds (docs/numerics.md): a few loud dims become a little louder everywhere,
// so that one scale a head serves all of them.
#pragma once
#include "octavo/simd.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

// The largest power of two that divides n: numbers are rotated in runs of it.
[[maybe_unused]] constexpr std::int64_t rotation_run(std::int64_t n) { return n & -n; }

template <int kHalf>
OCTAVO_INLINE void sums_and_differences(float* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += 2 * kHalf) {
        float sum[kHalf], difference[kHalf];
        for (int j = 0; j < kHalf; j++) {
            sum[j] = x[i + j] + x[i + kHalf + j];
            difference[j] = x[i + j] - x[i + kHalf + j];
        }
        memcpy(x + i, sum, sizeof sum);
        memcpy(x + i + kHalf, difference, sizeof difference);
    }
}

#if defined(OCTAVO_ISA_AVX2)
// The stages within 16 numbers at once: each lane beside the one at distance kHalf; y - x is y + (-x).
template <int kHalf>
OCTAVO_INLINE f32x16 stage(f32x16 x) {
    constexpr int kControl = kHalf == 1 ? 0xb1 : 0x4e;
    const auto sign = [](int lane) { return lane & kHalf ? -0.0f : 0.0f; };
    const __m256 signs = _mm256_setr_ps(sign(0), sign(1), sign(2), sign(3), sign(4), sign(5), sign(6), sign(7));
    const auto half = [&](__m256 v) {
        const __m256 other = kHalf == 4 ? _mm256_permute2f128_ps(v, v, 1) : _mm256_permute_ps(v, kControl);
        return _mm256_add_ps(other, _mm256_xor_ps(v, signs));
    };
    if constexpr (kHalf == 8) return {_mm256_add_ps(x.lo, x.hi), _mm256_sub_ps(x.lo, x.hi)};
    return {half(x.lo), half(x.hi)};
}
#endif

// The stages of distances 1 to 8.
OCTAVO_INLINE void rotate_near(float* x, std::int64_t n, std::int64_t run) {
#if defined(OCTAVO_ISA_AVX2)
    if (run >= 16) {
        for (std::int64_t i = 0; i < n; i += 16) store(x + i, stage<8>(stage<4>(stage<2>(stage<1>(load(x + i))))));
        return;
    }
#endif
    if (run > 1) sums_and_differences<1>(x, n);
    if (run > 2) sums_and_differences<2>(x, n);
    if (run > 4) sums_and_differences<4>(x, n);
    if (run > 8) sums_and_differences<8>(x, n);
}

// Each run by the Walsh-Hadamard matrix, not normalised: (x, y) to (x + y, x - y) at distance 1, 2, 4, ... Twice is
// times the run.
[[maybe_unused]] void rotate(float* x, std::int64_t n) {
    const std::int64_t run = rotation_run(n);
    rotate_near(x, n, run);
    for (std::int64_t half = 16; half < run; half *= 2)
        for (std::int64_t i = 0; i < n; i += 2 * half)
            for (std::int64_t j = i; j < i + half; j += 16) {
                const f32x16 a = load(x + j), b = load(x + j + half);
                store(x + j, add(a, b));
                store(x + j + half, sub(a, b));
            }
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA_NS
