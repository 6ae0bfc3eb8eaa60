// int8t: codes with one scale a column, times rows with one scale each. Nothing happens between groups, so all of a
// register file is sums, exact and in any order. See linear_tile.h for what tiles share.
#pragma once

#include "linear_range.h"

namespace octavo::OCTAVO_ISA_NS {

#if defined(OCTAVO_ISA_SCALAR)
inline constexpr int kTokenRows = 2;
#elif defined(OCTAVO_ISA_AVX2)
inline constexpr int kTokenRows = 4;
#else
inline constexpr int kTokenRows = 12;
#endif

// What a tile asks for: what will be read soon, from memory and on into the panels that follow; the same of its own
// panels, which a tile before it left in the second-level cache; or the panels that follow.
enum class Fetch { stream, again, next };

template <int rows, int panels>
static void token_tile(const LinearTask& t, int64_t row, int64_t panel, Fetch fetch) {
    using Dot = ByteDot;
    const size_t k = static_cast<size_t>(t.weight.k);
    const size_t stride = panel_bytes(WeightFormat::int8t, k);
    const uint8_t* w = t.weight.panels + static_cast<size_t>(panel) * stride;
    const uint8_t* const first = t.x + static_cast<size_t>(row) * t.x_stride;
    // Two sums of an output take turns where there are few: one would wait for itself.
    constexpr int kSums = rows * panels <= 4 ? 2 : 1;
    i32x16 sums[kSums][rows][panels];
    OCTAVO_UNROLL
    for (int m = 0; m < rows; ++m) {
        int32_t sum;
        memcpy(&sum, first + m * t.x_stride + q8t_sum_at(k), 4);
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) {
            sums[0][m][p] = Dot::start(-Dot::kOffset * sum);
            if constexpr (kSums == 2) sums[1][m][p] = zero_i32();
        }
    }
    // A pointer for three rows each: twice the stride is a multiple that addresses have.
    constexpr int kPointers = (rows + 2) / 3;
    const int8_t* x[kPointers];
    OCTAVO_UNROLL
    for (int i = 0; i < kPointers; ++i) x[i] = reinterpret_cast<const int8_t*>(first + 3 * i * t.x_stride);
    const size_t groups = groups_of(k);
    size_t ahead = fetch == Fetch::next ? panels * stride : kAhead;
    // Behind a panel the next to come is not its neighbour, which is read beside it.
    constexpr size_t kGroupsAhead = kAhead / 512;
    const size_t turn = fetch != Fetch::stream ? groups : groups > kGroupsAhead ? groups - kGroupsAhead : 0;
    for (size_t g = 0; g < groups; ++g) {
        if (g == turn) ahead += (panels - 1) * stride;
        OCTAVO_UNROLL
        for (int quad = 0; quad < 8; ++quad) {
            typename Dot::Weights codes[panels];
            OCTAVO_UNROLL
            for (int p = 0; p < panels; ++p) {
                const uint8_t* at = w + p * stride + 64 * quad;
                prefetch(at + ahead);
                codes[p] = Dot::prepare(load_i32(at));
            }
            OCTAVO_UNROLL
            for (int m = 0; m < rows; ++m) {
                const i32x16 xq = set1_quad(x[m / 3] + (m % 3) * t.x_stride + 4 * quad);
                OCTAVO_UNROLL
                for (int p = 0; p < panels; ++p) {
                    i32x16& acc = sums[quad % kSums][m][p];
                    acc = Dot::dot(acc, codes[p], xq);
                }
            }
        }
        w += 512;
        OCTAVO_UNROLL
        for (int i = 0; i < kPointers; ++i) x[i] += kGroup;
    }
    OCTAVO_UNROLL
    for (int p = 0; p < panels; ++p) {
        const f32x16 scale = load(reinterpret_cast<const float*>(w + p * stride));
        OCTAVO_UNROLL
        for (int m = 0; m < rows; ++m) {
            const f32x16 x_scale = set1(*reinterpret_cast<const float*>(first + m * t.x_stride + q8t_scale_at(k)));
            i32x16 sum = Dot::finish(sums[0][m][p]);
            if constexpr (kSums == 2) sum = add(sum, Dot::finish(sums[1][m][p]));
            put(t, row + m, panel + p, mul(to_f32(sum), mul(scale, x_scale)));
        }
    }
}

template <int panels>
static void token_range(const LinearTask& t, int64_t panel, int64_t row0, int64_t row1) {
    over_rows<kTokenRows>(row0, row1, [&]<int rows>(int64_t row) {
        // As in quant_range: of several tiles the last fetches the panels that follow.
        const Fetch fetch = row1 - row0 <= kTokenRows ? Fetch::stream : row + rows == row1 ? Fetch::next : Fetch::again;
        token_tile<rows, panels>(t, row, panel, fetch);
    });
}

OCTAVO_INLINE void token_linear(const LinearTask& t) {
    const int64_t block = static_cast<int64_t>(linear_row_block(t.weight.format, static_cast<size_t>(t.weight.k)));
    for (int64_t row0 = t.row0; row0 < t.row1; row0 += block) {
        const int64_t row1 = row0 + block < t.row1 ? row0 + block : t.row1;
        int64_t panel = t.panel0;
        for (; panel + kPanels <= t.panel1; panel += kPanels) token_range<kPanels>(t, panel, row0, row1);
        for (; panel < t.panel1; ++panel) token_range<1>(t, panel, row0, row1);
    }
}

}  // namespace octavo::OCTAVO_ISA_NS
