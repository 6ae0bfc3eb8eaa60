// Register tiles of the linears: `rows` rows times `panels` panels of 16 columns, all of k. See docs/numerics.md for
// the order of sums; a tile's shape cannot change it, since every output has an accumulator of its own.
#pragma once

#include "linear_dot.h"
#include "octavo/linear.h"

namespace octavo::OCTAVO_ISA_NS {

// How far ahead of its use a weight is asked for, in bytes of one panel's stream.
inline constexpr int kAhead = 1536;

// ---- output -------------------------------------------------------------------------------------------------------

// Sixteen finished sums of one row: bias, scale (1 changes no bit), then the buffer's dtype. `columns` < 16 only in the
// last panel.
OCTAVO_INLINE void put(const LinearTask& t, int64_t row, int64_t panel, f32x16 sum) {
    const int64_t column = panel * kPanel;
    const int64_t left = t.weight.n - column;
    const int columns = left < kPanel ? static_cast<int>(left) : kPanel;
    uint8_t* out = t.out + static_cast<size_t>(row) * t.out_stride;
    if (columns == kPanel) {
        if (t.bias) sum = add(sum, load(t.bias + column));
        sum = mul(sum, set1(t.scale));
        if (t.out_type == RowType::bf16) {
            store_bf16(reinterpret_cast<uint16_t*>(out) + column, sum);
        } else {
            float* y = reinterpret_cast<float*>(out) + column;
            store(y, t.accumulate ? add(load(y), sum) : sum);
        }
        return;
    }
    if (t.bias) sum = add(sum, load_first(t.bias + column, columns));
    sum = mul(sum, set1(t.scale));
    if (t.out_type == RowType::bf16) {
        store_bf16_first(reinterpret_cast<uint16_t*>(out) + column, sum, columns);
    } else {
        float* y = reinterpret_cast<float*>(out) + column;
        store_first(y, t.accumulate ? add(load_first(y, columns), sum) : sum, columns);
    }
}

// ---- formats ------------------------------------------------------------------------------------------------------

struct Int8 {
    using Dot = ByteDot;
    static constexpr WeightFormat kFormat = WeightFormat::int8;
    static constexpr int kCorrection = -ByteDot::kOffset;  // times the sum of a row's codes in a group
    static constexpr bool kNibbles = false, kMin = false;
};
struct Int4 {
    using Dot = NibbleDot;
    static constexpr WeightFormat kFormat = WeightFormat::int4;
    static constexpr int kCorrection = -8;
    static constexpr bool kNibbles = true, kMin = false;
};
struct Int4m {
    using Dot = NibbleDot;
    static constexpr WeightFormat kFormat = WeightFormat::int4m;
    static constexpr int kCorrection = 0;
    static constexpr bool kNibbles = true, kMin = true;
};

// What the tiles of one panel range share. `unpacked` codes are bytes, one quad after another, as in int8.
struct QuantInput {
    const uint8_t* codes;  // of the first panel
    size_t codes_stride;   // to the next panel's
    const uint8_t* meta;   // scales (and mins) of the first panel
    size_t meta_stride;
    const uint8_t* x;  // first row, a q8 row
    size_t x_stride;
    const int32_t* correction;  // [row][group], null where the format needs none
    const uint8_t* next;        // with unpacked codes: packed panels to fetch meanwhile, or null
    int64_t k;
};

// ---- tiles --------------------------------------------------------------------------------------------------------

// 32 inputs of `rows` rows against one group of every panel, as exact integers.
template <class F, bool nibbles, int rows, int panels>
OCTAVO_INLINE void group_dots(const QuantInput& in, size_t group, i32x16 (&dots)[rows][panels]) {
    using Dot = typename F::Dot;
    const size_t groups = groups_of(in.k);
    OCTAVO_UNROLL
    for (int m = 0; m < rows; ++m) {
        int32_t correction = 0;
        if constexpr (F::kCorrection != 0) correction = in.correction[m * groups + group];
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) dots[m][p] = Dot::start(correction);
    }
    constexpr int kQuads = nibbles ? 2 : 1;  // in 64 bytes of codes
    constexpr size_t kBytes = 512 / kQuads;  // of codes in a group
    const uint8_t* codes = in.codes + group * kBytes;
    // Behind this panel's codes the next ones to come are the next panel's.
    const bool last = group * kBytes + kAhead >= groups * kBytes;
    const uint8_t* ahead = codes + kAhead + (last ? panels * in.codes_stride - groups * kBytes : 0);
    const int8_t* x = reinterpret_cast<const int8_t*>(in.x) + kGroup * group;
    OCTAVO_UNROLL
    for (int quad = 0; quad < 8; quad += kQuads) {
        typename Dot::Weights w[kQuads][panels];
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) {
            const uint8_t* at = codes + p * in.codes_stride + quad / kQuads * 64;
            if constexpr (nibbles || !F::kNibbles) prefetch(ahead + (at - codes));
            const i32x16 raw = load_i32(at);
            if constexpr (nibbles) {
                w[0][p] = Dot::prepare(low_nibbles(raw));
                w[1][p] = Dot::prepare(high_nibbles(raw));
            } else {
                w[0][p] = Dot::prepare(raw);
            }
        }
        OCTAVO_UNROLL
        for (int q = 0; q < kQuads; ++q) {
            OCTAVO_UNROLL
            for (int m = 0; m < rows; ++m) {
                const i32x16 xq = set1_quad(x + m * in.x_stride + 4 * (quad + q));
                OCTAVO_UNROLL
                for (int p = 0; p < panels; ++p) dots[m][p] = Dot::dot(dots[m][p], w[q][p], xq);
            }
        }
    }
    OCTAVO_UNROLL
    for (int m = 0; m < rows; ++m) {
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) dots[m][p] = Dot::finish(dots[m][p]);
    }
}

template <class F, bool nibbles, int rows, int panels>
static void quant_tile(const LinearTask& t, const QuantInput& in, int64_t row, int64_t panel) {
    const size_t groups = groups_of(in.k);
    const size_t scales_at = q8_scales_at(in.k);
    const size_t sums_at = q8_sums_at(in.k);
    constexpr size_t kMeta = group_meta_bytes(F::kFormat);
    constexpr size_t kGroupBytes = panel_code_bytes(F::kFormat, kGroup) + kMeta;
    constexpr bool kStreams = nibbles || !F::kNibbles;  // codes come from the packed panel itself
    f32x16 sums[rows][panels];
    OCTAVO_UNROLL
    for (int m = 0; m < rows; ++m) {
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) sums[m][p] = zero_f32();
    }
    for (size_t g = 0; g < groups; ++g) {
        i32x16 dots[rows][panels];
        group_dots<F, nibbles, rows, panels>(in, g, dots);
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) {
            const uint8_t* meta = in.meta + p * in.meta_stride + g * kMeta;
            if constexpr (kStreams) {
                prefetch(meta + panels * in.meta_stride);  // the next panel's
            } else if (in.next) {
                const uint8_t* next = in.next + p * in.meta_stride + g * kGroupBytes;
                OCTAVO_UNROLL
                for (size_t line = 0; line < kGroupBytes; line += 64) prefetch(next + line);
            }
            const f32x16 scale = load_f16(reinterpret_cast<const uint16_t*>(meta));
            f32x16 minimum = zero_f32();
            if constexpr (F::kMin) minimum = load_f16(reinterpret_cast<const uint16_t*>(meta) + kPanel);
            OCTAVO_UNROLL
            for (int m = 0; m < rows; ++m) {
                const uint8_t* x = in.x + m * in.x_stride;
                const f32x16 x_scale = set1(reinterpret_cast<const float*>(x + scales_at)[g]);
                sums[m][p] = fma(to_f32(dots[m][p]), mul(scale, x_scale), sums[m][p]);
                if constexpr (F::kMin) {
                    const f32x16 x_sum = set1(reinterpret_cast<const float*>(x + sums_at)[g]);
                    sums[m][p] = fma(minimum, x_sum, sums[m][p]);
                }
            }
        }
    }
    OCTAVO_UNROLL
    for (int m = 0; m < rows; ++m) {
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) put(t, row + m, panel + p, sums[m][p]);
    }
}

template <int rows, int panels>
static void f32_tile(const LinearTask& t, int64_t row, int64_t panel) {
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
            prefetch(at + kAhead);
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
static void bf16_tile(const LinearTask& t, int64_t row, int64_t panel) {
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
            prefetch(at + kAhead);
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
