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

// Each run by the Walsh-Hadamard matrix, not normalised: (x, y) to (x + y, x - y) at distance 1, 2, 4, ... Twice is
// times the run.
[[maybe_unused]] void rotate(float* x, std::int64_t n) {
    const std::int64_t run = rotation_run(n);
    if (run > 1) sums_and_differences<1>(x, n);
    if (run > 2) sums_and_differences<2>(x, n);
    if (run > 4) sums_and_differences<4>(x, n);
    if (run > 8) sums_and_differences<8>(x, n);
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
