// Register tiles of the float linears: see linear_tile.h.
#pragma once

#include "linear_tile.h"

namespace octavo::OCTAVO_ISA_NS {

// `ahead`: from a weight to what is asked for with it, in bytes.
template <int rows, int panels>
static void f32_tile(const LinearTask& t, int64_t row, int64_t panel, size_t ahead) {
    const int64_t k = t.weight.k;
    const size_t stride = panel_bytes(WeightFormat::f32, static_cast<size_t>(k));
    const uint8_t* w = t.weight.panels + static_cast<size_t>(panel) * stride;
    const uint8_t* x = t.x + static_cast<size_t>(row) * t.x_stride;
    f32x16 sums[rows][panels];
    OCTAVO_UNROLL
    for (int m = 0; m < rows; ++m) {
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) sums[m][p] = zero_f32();
    }
    for (int64_t i = 0; i < k; ++i) {
        f32x16 weights[panels];
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) {
            const uint8_t* at = w + p * stride + 64 * i;
            prefetch(at + ahead);
            weights[p] = load(reinterpret_cast<const float*>(at));
        }
        OCTAVO_UNROLL
        for (int m = 0; m < rows; ++m) {
            const f32x16 xi = set1(reinterpret_cast<const float*>(x + m * t.x_stride)[i]);
            OCTAVO_UNROLL
            for (int p = 0; p < panels; ++p) sums[m][p] = fma(xi, weights[p], sums[m][p]);
        }
    }
    OCTAVO_UNROLL
    for (int m = 0; m < rows; ++m) {
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) put(t, row + m, panel + p, sums[m][p]);
    }
}

template <int rows, int panels>
static void bf16_tile(const LinearTask& t, int64_t row, int64_t panel, size_t ahead) {
    const int64_t k = t.weight.k;
    const size_t stride = panel_bytes(WeightFormat::bf16, static_cast<size_t>(k));
    const uint8_t* w = t.weight.panels + static_cast<size_t>(panel) * stride;
    const uint8_t* x = t.x + static_cast<size_t>(row) * t.x_stride;
    f32x16 sums[rows][panels];
    OCTAVO_UNROLL
    for (int m = 0; m < rows; ++m) {
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) sums[m][p] = zero_f32();
    }
    const int64_t pairs = k / 2;
    for (int64_t i = 0; i < pairs; ++i) {
        i32x16 weights[panels];
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) {
            const uint8_t* at = w + p * stride + 64 * i;
            prefetch(at + ahead);
            weights[p] = load_i32(at);
        }
        OCTAVO_UNROLL
        for (int m = 0; m < rows; ++m) {
            const i32x16 xi = set1_pair(reinterpret_cast<const uint16_t*>(x + m * t.x_stride) + 2 * i);
            OCTAVO_UNROLL
            for (int p = 0; p < panels; ++p) sums[m][p] = pair_fma(sums[m][p], xi, weights[p]);
        }
    }
    if (k % 2 != 0) {
        OCTAVO_UNROLL
        for (int m = 0; m < rows; ++m) {
            const uint16_t last[2] = {reinterpret_cast<const uint16_t*>(x + m * t.x_stride)[k - 1], 0};
            const i32x16 xi = set1_pair(last);
            OCTAVO_UNROLL
            for (int p = 0; p < panels; ++p) {
                sums[m][p] = pair_fma(sums[m][p], xi, load_i32(w + p * stride + 64 * pairs));
            }
        }
    }
    OCTAVO_UNROLL
    for (int m = 0; m < rows; ++m) {
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) put(t, row + m, panel + p, sums[m][p]);
    }
}

}  // namespace octavo::OCTAVO_ISA_NS
