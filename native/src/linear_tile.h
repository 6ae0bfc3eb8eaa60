// Register tiles of the linears: `rows` rows times `panels` panels of 16 columns, all of k. See docs/numerics.md for
// the order of sums; a tile's shape cannot change it, since every output has an accumulator of its own. This file has
// what all tiles share and those of the quantised formats; linear_float.h has the others.
#pragma once

#include <type_traits>

#include "linear_dot.h"
#include "octavo/linear.h"

namespace octavo::OCTAVO_ISA_NS {

// How far ahead of its use a weight is asked for, in bytes of one panel's stream: what passes in the time of a read
// from memory.
#if defined(OCTAVO_ISA_SCALAR) || defined(OCTAVO_ISA_AVX2)
inline constexpr int kAhead = 1536;
#else
inline constexpr int kAhead = 4096;
#endif

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

template <WeightFormat format>
struct Quant {
    static constexpr WeightFormat kFormat = format;
    static constexpr int kBits = info_of(format).bits;
    static constexpr Table kTable = info_of(format).table;
    static constexpr int kOffset = info_of(format).offset + table_info(kTable).offset;
    static constexpr Scale kScale = info_of(format).scale;
    static constexpr bool kSixteen = kScale == Scale::super16 || kScale == Scale::super16_min;
    using Dot = std::conditional_t<
        kBits == 8 || kTable == Table::iq4, ByteDot,
        std::conditional_t<kSixteen, SmallDot<kOffset>,
                           std::conditional_t<kBits == 5 || kTable == Table::fp4, FiveDot, NibbleDot>>>;
    static constexpr int kRuns = 8 / Dot::kRun;
    // Times the sum of a row's codes in each run: what a sum starts with, or (super16_min) what minima multiply.
    static constexpr int kCorrection = kScale == Scale::super16_min ? 1 : -Dot::kOffset - (Dot::kCenters ? 0 : kOffset);
    static constexpr bool kStarts = kCorrection != 0 && kScale != Scale::super16_min;
    static constexpr bool kMin = kScale == Scale::half_min || kScale == Scale::half_zero || kScale == Scale::super ||
                                 kScale == Scale::super16_min;
    // Whether many rows add exponents (spread_scales): kQ8Least and kQ8Top were chosen for scales made from an f16.
    static constexpr bool kSpreads = kScale != Scale::wide && kScale != Scale::power && !kSixteen;
};

// What the tiles of one panel range share. `unpacked` codes are bytes, one quad after another, as in int8.
struct QuantInput {
    const uint8_t* codes;  // of the first panel
    size_t codes_stride;   // to the next panel's
    const uint8_t* meta;   // of the first panel
    size_t meta_stride;
    const uint8_t* x;  // first row, a q8 row
    size_t x_stride;
    const int32_t* correction;  // [row][group][run], null where the format needs none
    const uint8_t* spread;      // what spread_scales made, where it was called
    const uint8_t* next;        // the panels that follow, where this tile is to fetch them, or null
    int64_t k;
};

// Each byte's bits moved up by `left` (down where it is negative) and masked. Constant where loops are unrolled.
OCTAVO_INLINE i32x16 move_bits(i32x16 v, int left, int32_t mask) {
    switch (left) {
        case 4: v = shift_left<4>(v); break;
        case 3: v = shift_left<3>(v); break;
        case 2: v = shift_left<2>(v); break;
        case 1: v = shift_left<1>(v); break;
        case -1: v = shift_right<1>(v); break;
        case -2: v = shift_right<2>(v); break;
        case -3: v = shift_right<3>(v); break;
        case -4: v = shift_right<4>(v); break;
        case -5: v = shift_right<5>(v); break;
        case -6: v = shift_right<6>(v); break;
        default: break;
    }
    return bit_and(v, set1(mask));
}

// Quad `quad` of a group's packed codes, a byte each (linear.h has the layout).
template <int bits>
OCTAVO_INLINE i32x16 packed_quad(const uint8_t* at, int quad) {
    if constexpr (bits == 8) {
        return load_i32(at + 64 * quad);
    } else if constexpr (bits < 4) {
        const i32x16 low = move_bits(load_i32(at + quad / 4 * 64), -2 * (quad % 4), 0x03030303);
        if constexpr (bits == 2) return low;
        return bit_or(low, move_bits(load_i32(at + 128), 2 - quad, 0x04040404));
    } else {
        const i32x16 raw = load_i32(at + quad / 2 * 64);
        const i32x16 low = quad % 2 == 0 ? low_nibbles(raw) : high_nibbles(raw);
        if constexpr (bits == 4) return low;
        if constexpr (bits == 5) return bit_or(low, move_bits(load_i32(at + 256), 4 - quad, 0x10101010));
        return bit_or(low, move_bits(load_i32(at + 256 + quad / 4 * 64), 4 - 2 * (quad % 4), 0x30303030));
    }
}

// A table as kernels look it up.
struct Bytes16 {
    int8_t v[16];
};
constexpr Bytes16 shifted(const TableInfo& table) {
    Bytes16 out{};
    for (int i = 0; i < 16; ++i) out.v[i] = static_cast<int8_t>(table.codes[i] + table.offset);
    return out;
}
template <Table table>
alignas(16) static constexpr Bytes16 kShifted = shifted(table_info(table));

// Its codes + F::kOffset.
template <class F>
OCTAVO_INLINE i32x16 code_quad(const uint8_t* at, int quad) {
    const i32x16 stored = packed_quad<F::kBits>(at, quad);
    if constexpr (F::kTable == Table::none) return stored;
    return look_up(kShifted<F::kTable>.v, stored);
}

// Where a panel keeps the scales of a group: its own, and those of its super group.
struct Meta {
    const uint8_t* group;
    const uint8_t* super;
};
template <class F>
OCTAVO_INLINE Meta meta_at(const uint8_t* meta, size_t groups, size_t g) {
    constexpr MetaBytes kBytes = meta_of(F::kScale);
    return {meta + (groups + kSuper - 1) / kSuper * kBytes.super + g * kBytes.group, meta + g / kSuper * kBytes.super};
}

OCTAVO_INLINE f32x16 halves_at(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }

// What multiplies the integer sum of a group.
template <class F>
OCTAVO_INLINE f32x16 scale_of(Meta m) {
    if constexpr (F::kScale == Scale::wide) return load(reinterpret_cast<const float*>(m.group));
    // The two smallest powers are denormal and would be flushed: they are 0 here.
    if constexpr (F::kScale == Scale::power) {
        return as_f32(shift_left<23>(max(sub(load_u8(m.group), set1(int32_t{1})), zero_i32())));
    }
    if constexpr (F::kScale == Scale::super32) {
        return mul(halves_at(m.super), to_f32(load_i8(reinterpret_cast<const int8_t*>(m.group))));
    }
    if constexpr (F::kScale == Scale::super) return mul(halves_at(m.super), to_f32(load_u8(m.group)));
    return halves_at(F::kSixteen ? m.super : m.group);
}

// What multiplies the row's sum of a group (super16_min: the integer of `minima`).
template <class F>
OCTAVO_INLINE f32x16 minimum_of(Meta m, f32x16 scale) {
    if constexpr (F::kScale == Scale::half_zero) return neg(mul(scale, to_f32(load_u8(m.group + 32))));
    if constexpr (F::kScale == Scale::super) return neg(mul(halves_at(m.super + 32), to_f32(load_u8(m.group + 16))));
    if constexpr (F::kScale == Scale::super16_min) return halves_at(m.super + 32);
    return halves_at(m.group + 32);
}

// What many rows take for a group of a panel instead of its scales: the bits of its scale less those of 1, to which the
// bits of a row's scale are added. That is a power of two, so this is their product wherever both it and the scale are
// normal numbers, on ports that dot products and multiplications leave free. Behind it, the minimum.
template <class F>
static constexpr size_t kSpreadBytes = F::kMin ? 128 : 64;
OCTAVO_INLINE f32x16 add_exponent(i32x16 less_one, f32x16 x) { return as_f32(add(less_one, as_i32(x))); }

// Spreads the scales of `panels` panels, a group's beside each other. False where one is 0, infinite or NaN.
template <class F, int panels>
OCTAVO_INLINE bool spread_scales(const uint8_t* meta, size_t stride, size_t groups, uint8_t* out) {
    const i32x16 one = set1(int32_t{0x3f800000});
    i32x16 zeros = zero_i32();
    i32x16 most = zero_i32();
    for (size_t g = 0; g < groups; ++g) {
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p, out += kSpreadBytes<F>) {
            const Meta at = meta_at<F>(meta + p * stride, groups, g);
            const f32x16 scale = scale_of<F>(at);
            const i32x16 magnitude = as_i32(abs(scale));
            zeros = max(zeros, sub(set1(int32_t{1}), magnitude));
            most = max(most, magnitude);
            store_i32(out, sub(as_i32(scale), one));
            if constexpr (F::kMin) store_i32(out + 64, as_i32(minimum_of<F>(at, scale)));
        }
    }
    return fold_max_i32(zeros) == 0 && fold_max_i32(most) < 0x7f800000;
}

// The integer that multiplies 16 inputs.
template <class F>
OCTAVO_INLINE i32x16 small_scale(Meta m, int half) {
    if constexpr (F::kScale == Scale::super16) return load_i8(reinterpret_cast<const int8_t*>(m.group) + 16 * half);
    return bit_and(load_u8(m.group + 16 * half), set1(int32_t{15}));
}

// - sum of (minimum of 16 inputs) * (the row's sum of them).
OCTAVO_INLINE i32x16 minima(Meta m, const int32_t* sums) {
    const i32x16 low = mul(shift_right<4>(load_u8(m.group)), set1(sums[0]));
    const i32x16 high = mul(shift_right<4>(load_u8(m.group + 16)), set1(sums[1]));
    return sub(zero_i32(), add(low, high));
}

// ---- tiles --------------------------------------------------------------------------------------------------------

// 32 inputs of `rows` rows against one group of every panel, as exact integers.
template <class F, bool packed, int rows, int panels>
OCTAVO_INLINE void group_dots(const QuantInput& in, size_t group, i32x16 (&dots)[rows][panels]) {
    using Dot = typename F::Dot;
    const size_t groups = groups_of(in.k);
    constexpr size_t kBytes = packed ? group_code_bytes(F::kFormat) : 512;
    // Quads whose codes are taken together: two share a vector of nibbles.
    constexpr int kQuads = packed && F::kBits != 8 ? 2 : 1;
    const uint8_t* codes = in.codes + group * kBytes;
    if constexpr (packed) {
        // Behind this panel's codes the next ones to come are the next panel's.
        const bool last = group * kBytes + kAhead >= groups * kBytes;
        const uint8_t* ahead = codes + kAhead + (last ? panels * in.codes_stride - groups * kBytes : 0);
        if (!in.next) {
            OCTAVO_UNROLL
            for (int p = 0; p < panels; ++p) {
                OCTAVO_UNROLL
                for (size_t line = 0; line < kBytes; line += 64) prefetch(ahead + p * in.codes_stride + line);
            }
        }
    }
    const int8_t* x = reinterpret_cast<const int8_t*>(in.x) + kGroup * group;
    OCTAVO_UNROLL
    for (int run = 0; run < F::kRuns; ++run) {
        i32x16 sums[rows][panels];
        OCTAVO_UNROLL
        for (int m = 0; m < rows; ++m) {
            if constexpr (F::kStarts) {
                const int32_t correction = in.correction[(m * groups + group) * F::kRuns + run];
                OCTAVO_UNROLL
                for (int p = 0; p < panels; ++p) sums[m][p] = Dot::start(correction);
            }
        }
        OCTAVO_UNROLL
        for (int quad = run * Dot::kRun; quad < (run + 1) * Dot::kRun; quad += kQuads) {
            typename Dot::Weights w[kQuads][panels];
            OCTAVO_UNROLL
            for (int p = 0; p < panels; ++p) {
                const uint8_t* at = codes + p * in.codes_stride;
                OCTAVO_UNROLL
                for (int q = 0; q < kQuads; ++q) {
                    if constexpr (packed) {
                        w[q][p] = Dot::prepare(Dot::center(code_quad<F>(at, quad + q)));
                    } else {
                        w[q][p] = Dot::prepare(load_i32(at + 64 * (quad + q)));
                    }
                }
            }
            OCTAVO_UNROLL
            for (int q = 0; q < kQuads; ++q) {
                const bool first = !F::kStarts && quad + q == run * Dot::kRun;
                OCTAVO_UNROLL
                for (int m = 0; m < rows; ++m) {
                    const i32x16 xq = set1_quad(x + m * in.x_stride + 4 * (quad + q));
                    OCTAVO_UNROLL
                    for (int p = 0; p < panels; ++p)
                        sums[m][p] = first ? Dot::product(w[q][p], xq) : Dot::dot(sums[m][p], w[q][p], xq);
                }
            }
        }
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) {
            i32x16 factor{};
            if constexpr (F::kSixteen) {
                factor = Dot::factor(small_scale<F>(meta_at<F>(in.meta + p * in.meta_stride, groups, group), run));
            }
            OCTAVO_UNROLL
            for (int m = 0; m < rows; ++m) {
                i32x16 done;
                if constexpr (F::kSixteen) {
                    done = Dot::finish(sums[m][p], factor);
                } else {
                    done = Dot::finish(sums[m][p]);
                }
                dots[m][p] = run == 0 ? done : add(dots[m][p], done);
            }
        }
    }
}

// `spread`: by what spread_scales made; none of the rows' scales is NaN.
template <class F, bool packed, int rows, int panels, bool spread>
static void quant_tile(const LinearTask& t, const QuantInput& in, int64_t row, int64_t panel) {
    const size_t groups = groups_of(in.k);
    const size_t scales_at = q8_scales_at(in.k);
    const size_t sums_at = q8_sums_at(in.k);
    constexpr MetaBytes kMeta = meta_of(F::kScale);
    constexpr size_t kGroupBytes = group_code_bytes(F::kFormat) + kMeta.group + kMeta.super / kSuper;
    f32x16 sums[rows][panels];
    OCTAVO_UNROLL
    for (int m = 0; m < rows; ++m) {
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) sums[m][p] = zero_f32();
    }
    for (size_t g = 0; g < groups; ++g) {
        i32x16 dots[rows][panels];
        group_dots<F, packed, rows, panels>(in, g, dots);
        OCTAVO_UNROLL
        for (int p = 0; p < panels; ++p) {
            const Meta meta = meta_at<F>(in.meta + p * in.meta_stride, groups, g);
            if (in.next) [[unlikely]] {
                const uint8_t* next = in.next + p * in.meta_stride + g * kGroupBytes;
                OCTAVO_UNROLL
                for (size_t line = 0; line < kGroupBytes; line += 64) prefetch(next + line);
            } else if (packed) {
                prefetch(meta.group + panels * in.meta_stride);  // the next panel's
                if constexpr (kMeta.super != 0) prefetch(meta.super + panels * in.meta_stride);
            }
            const uint8_t* made = in.spread + (g * panels + p) * kSpreadBytes<F>;
            f32x16 scale = zero_f32();
            if constexpr (!spread) scale = scale_of<F>(meta);
            f32x16 minimum = zero_f32();
            if constexpr (F::kMin) minimum = spread ? as_f32(load_i32(made + 64)) : minimum_of<F>(meta, scale);
            OCTAVO_UNROLL
            for (int m = 0; m < rows; ++m) {
                const uint8_t* x = in.x + m * in.x_stride;
                const f32x16 x_scale = set1(reinterpret_cast<const float*>(x + scales_at)[g]);
                const f32x16 both = spread ? add_exponent(load_i32(made), x_scale) : mul(scale, x_scale);
                sums[m][p] = fma(to_f32(dots[m][p]), both, sums[m][p]);
                if constexpr (F::kScale == Scale::super16_min) {
                    const i32x16 below = minima(meta, in.correction + 2 * (m * groups + g));
                    sums[m][p] = fma(to_f32(below), mul(minimum, x_scale), sums[m][p]);
                } else if constexpr (F::kMin) {
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

}  // namespace octavo::OCTAVO_ISA_NS
