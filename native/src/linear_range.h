// Cuts a task of a quantised format into register tiles (linear_tile.h).
#pragma once

#include "linear_tile.h"

namespace octavo::OCTAVO_ISA_NS {

// Rows of a register tile, and panels beside each other, by what the register file holds.
#if defined(OCTAVO_ISA_SCALAR)
inline constexpr int kQuantRows = 2, kFloatRows = 2, kPanels = 1;
inline constexpr int kUnpackFrom = 9;
#elif defined(OCTAVO_ISA_AVX2)
inline constexpr int kQuantRows = 6, kFloatRows = 6, kPanels = 1;
inline constexpr int kUnpackFrom = 7;
#else
inline constexpr int kQuantRows = 6, kFloatRows = 12, kPanels = 2;
inline constexpr int kUnpackFrom = 0;  // never: unpacking hides behind the dot products' two ports
#endif

// Up to here rows of bytes take one panel after another.
inline constexpr int kAloneRows = 2;

// From so many rows on scales are spread (spread_scales), where unpacked codes would lie. 0: never.
#if defined(OCTAVO_ISA_SCALAR) || defined(OCTAVO_ISA_AVX2)
inline constexpr int kSpreadFrom = 0;
#else
inline constexpr int kSpreadFrom = 2 * kQuantRows;  // blocks of wide rows have as many (linear_row_block)
#endif
static_assert(kSpreadFrom == 0 || kUnpackFrom == 0);
inline constexpr int kLeastSpreadRows = kSpreadFrom / 3;  // of the tiles that so many rows are cut into

// Calls tile<rows> for a row count from `least` to `most` known only at run time.
template <int least, int most, class Tile>
OCTAVO_INLINE void with_rows(int64_t rows, const Tile& tile) {
    if constexpr (most > least) {
        if (rows < most) return with_rows<least, most - 1>(rows, tile);
    }
    tile.template operator()<most>();
}

// Rows [row0, row1) in tiles of at most `most`, sizes within one of each other; the caller knows that none is below
// `least`.
template <int most, int least = 1, class Tile>
OCTAVO_INLINE void over_rows(int64_t row0, int64_t row1, const Tile& tile) {
    int64_t tiles = (row1 - row0 + most - 1) / most;
    for (int64_t row = row0; tiles > 0; --tiles) {
        const int64_t rows = (row1 - row + tiles - 1) / tiles;
        with_rows<least, most>(rows, [&]<int count>() { tile.template operator()<count>(row); });
        row += rows;
    }
}

// ---- quantised ----------------------------------------------------------------------------------------------------

// Sums of `count` <= 16 runs of 32 / runs codes each, a lane a run; the lanes behind them are 0.
template <int runs>
OCTAVO_INLINE i32x16 run_sums(const int8_t* codes, int64_t count) {
    constexpr int kVectors = 8 / runs;  // of 64 codes, 16 quads
    const int64_t quads = count * (8 / runs);
    i32x16 sums[kVectors];
    OCTAVO_UNROLL
    for (int v = 0; v < kVectors; ++v) {
        const int64_t left = quads - 16 * v;
        sums[v] = left >= 16 ? add_bytes(load_i32(codes + 64 * v))
                             : add_bytes(load_i32_first(codes + 64 * v, left < 0 ? 0 : static_cast<int>(left)));
    }
    OCTAVO_UNROLL
    for (int n = kVectors / 2; n > 0; n /= 2) {
        OCTAVO_UNROLL
        for (int v = 0; v < n; ++v) sums[v] = add_neighbours(sums[2 * v], sums[2 * v + 1]);
    }
    return sums[0];
}

// factor * (sum of a row's codes) for each run of each group of rows [row0, row1). Every task makes them again, a few
// panels wide or not.
template <int runs>
static void fill_corrections(const LinearTask& t, int factor, int64_t row0, int64_t row1, int32_t* out) {
    const int64_t parts = runs * static_cast<int64_t>(groups_of(t.weight.k));
    constexpr int kPart = kGroup / runs;
    const i32x16 by = set1(static_cast<int32_t>(factor));
    for (int64_t row = row0; row < row1; ++row, out += parts) {
        const int8_t* codes = reinterpret_cast<const int8_t*>(t.x + static_cast<size_t>(row) * t.x_stride);
        for (int64_t part = 0; part < parts; part += 16) {
            const int count = parts - part < 16 ? static_cast<int>(parts - part) : 16;
            store_i32_first(out + part, mul(run_sums<runs>(codes + kPart * part, count), by), count);
        }
    }
}

// Whether no group of rows [row0, row1) is NaN.
OCTAVO_INLINE bool no_nan_scale(const LinearTask& t, int64_t row0, int64_t row1) {
    const int64_t groups = static_cast<int64_t>(groups_of(t.weight.k));
    i32x16 most = zero_i32();
    for (int64_t row = row0; row < row1; ++row) {
        const uint8_t* scales = t.x + static_cast<size_t>(row) * t.x_stride + q8_scales_at(t.weight.k);
        for (int64_t g = 0; g < groups; g += 16) {
            most = max(most, load_i32_first(scales + 4 * g, groups - g < 16 ? static_cast<int>(groups - g) : 16));
        }
    }
    return fold_max_i32(most) < 0x7f800000;
}

// The codes of one panel to bytes, in the order of int8.
template <class F>
static void unpack_panel(const uint8_t* codes, size_t groups, uint8_t* out) {
    for (size_t g = 0; g < groups; ++g) {
        const uint8_t* at = codes + g * group_code_bytes(F::kFormat);
        OCTAVO_UNROLL
        for (int quad = 0; quad < 8; ++quad) {
            store_i32(out + 512 * g + 64 * quad, F::Dot::center(code_quad<F>(at, quad)));
        }
    }
}

template <class F, bool packed, int panels, bool spread>
OCTAVO_INLINE void quant_panels(const LinearTask& t, QuantInput in, int64_t panel, int64_t row0, int64_t row1) {
    const int32_t* corrections = in.correction;
    const uint8_t* next = in.next;
    over_rows<kQuantRows, spread ? kLeastSpreadRows : 1>(row0, row1, [&]<int rows>(int64_t row) {
        in.x = t.x + static_cast<size_t>(row) * t.x_stride;
        in.correction = corrections + (row - row0) * F::kRuns * static_cast<int64_t>(groups_of(in.k));
        in.next = row + rows == row1 ? next : nullptr;  // the last tile fetches the next panel
        quant_tile<F, packed, rows, panels, spread>(t, in, row, panel);
    });
}

template <class F, int panels>
static void quant_range(const LinearTask& t, int64_t panel, int64_t row0, int64_t row1, uint8_t* scratch,
                        const int32_t* corrections, [[maybe_unused]] bool spreads) {
    const size_t k = static_cast<size_t>(t.weight.k);
    const size_t stride = panel_bytes(F::kFormat, k);
    const uint8_t* codes = t.weight.panels + static_cast<size_t>(panel) * stride;
    QuantInput in{
        codes,   stride,    codes + panel_code_bytes(F::kFormat, k), stride, t.x, t.x_stride, corrections, scratch,
        nullptr, t.weight.k};
    // A panel left over is read as it is: half the tiles to compile, for one panel in many.
    if constexpr (kUnpackFrom != 0 && F::kBits != 8 && panels == kPanels) {
        if (row1 - row0 >= kUnpackFrom) {
            const size_t bytes = 512 * groups_of(k);
            for (int p = 0; p < panels; ++p) unpack_panel<F>(codes + p * stride, groups_of(k), scratch + p * bytes);
            in.codes = scratch;
            in.codes_stride = bytes;
            if (panel + 2 * panels <= t.panel1) in.next = codes + panels * stride;
            return quant_panels<F, false, panels, false>(t, in, panel, row0, row1);
        }
    }
    // One tile streams. Of more, the first would wait for memory and the others not use it: the last fetches what
    // follows.
    if (row1 - row0 > kQuantRows && panel + 2 * panels <= t.panel1) in.next = codes + panels * stride;
    if constexpr (kSpreadFrom != 0 && F::kSpreads && panels == kPanels) {
        if (spreads && spread_scales<F, panels>(in.meta, stride, groups_of(k), scratch))
            return quant_panels<F, true, panels, true>(t, in, panel, row0, row1);
    }
    quant_panels<F, true, panels, false>(t, in, panel, row0, row1);
}

template <WeightFormat format>
OCTAVO_INLINE void quant_linear(const LinearTask& t) {
    using F = Quant<format>;
    const size_t k = static_cast<size_t>(t.weight.k);
    const int64_t block = static_cast<int64_t>(linear_row_block(format, k));
    int32_t* corrections = reinterpret_cast<int32_t*>(t.scratch + 1024 * groups_of(k));
    for (int64_t row0 = t.row0; row0 < t.row1; row0 += block) {
        const int64_t row1 = row0 + block < t.row1 ? row0 + block : t.row1;
        if constexpr (F::kCorrection != 0) fill_corrections<F::kRuns>(t, F::kCorrection, row0, row1, corrections);
        const bool spreads = kSpreadFrom != 0 && row1 - row0 >= kSpreadFrom && no_nan_scale(t, row0, row1);
        int64_t panel = t.panel0;
        // Bytes need no decoding: so few rows of them are a matter of memory, and one stream comes faster than two.
        const bool alone = F::kBits == 8 && row1 - row0 <= kAloneRows;
        for (; !alone && panel + kPanels <= t.panel1; panel += kPanels) {
            quant_range<F, kPanels>(t, panel, row0, row1, t.scratch, corrections, spreads);
        }
        for (; panel < t.panel1; ++panel) quant_range<F, 1>(t, panel, row0, row1, t.scratch, corrections, spreads);
    }
}

}  // namespace octavo::OCTAVO_ISA_NS
