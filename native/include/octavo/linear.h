// Packed weights, quantised rows, and the linear kernels over them: plain data and declarations.
//
// Included by baseline code (packing, binding, planning) and by every ISA's kernels, so all functions here are static.
//
// A weight of n outputs over k inputs is packed in panels of 16 outputs (columns). A panel is contiguous, 64-byte
// aligned, and holds a codes region and then, for the quantised formats, a meta region:
//
//   f32    [k][16] f32
//   bf16   [k / 2][16][2] bf16                         element 2p, then 2p + 1
//   intB*  [group][B * 64 bytes of codes] + meta       B bits a code
//
// A group is 32 inputs: 8 quads of 4, and k = 32 g + 4 q + b is byte b of the 4 bytes that each of 16 columns has in a
// vector of 64. The codes of a group are one or two planes:
//
//   8 bits   8 vectors, one a quad; int8
//   4, 5, 6  4 vectors of nibbles: low ones are quad 2j, high ones quad 2j + 1
//   2, 3     2 vectors: bits 2 (q % 4) and up of a byte are quad q's of vector q / 4
//   5, 3     then 1 vector: bit q of a byte is quad q's highest bit
//   6        then 2 vectors as those of 2 bits: its two highest
//
// What is stored is code + offset, or where a format has a table, the index of the code there. The meta region, by kind
// of scale, for 16 columns (a super group is 8 groups):
//
//   half         [group][f16 scale]                                            value = scale code
//   half_min     [group][f16 scale, f16 min]                                   scale code + min
//   half_zero    [group][f16 scale, u8 zero]                                   scale (code - zero)
//   wide         [group][f32 scale]                                            scale code
//   power        [group][u8 e]                                                 2^(e - 128) code
//   super32      [super][f16 d], then [group][i8 s]                            (d s) code
//   super        [super][f16 d, f16 e], then [group][u8 s, u8 m]               (d s) code - (e m)
//   super16      [super][f16 d], then [group][i8 s of 16 inputs, of 16 more]   (d s) code
//   super16_min  [super][f16 d, f16 e], then [group][two bytes s + 16 m]       (d s) code - (e m)
//   column       [f32 scale], once a panel                                     scale code
//
// k is padded with zeros to 32 (quantised), 2 (bf16) or 1; n is padded with zero columns to 16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace octavo {

inline constexpr int kPanel = 16;     // columns of a panel
inline constexpr int kGroup = 32;     // inputs that share a scale
inline constexpr size_t kAlign = 64;  // of panels and of rows

inline constexpr int kSuper = 8;  // groups that share the scale of their scales

// In the order of kFormats.
enum class WeightFormat : uint8_t {
    f32,
    bf16,
    int8,
    int4,
    int4m,
    int8f,
    int4z,
    int4k,
    int5,
    int5m,
    int5k,
    int6k,
    int3k,
    int2k,
    int4n,
    int4x,
    int4e,
    int8t
};
enum class Scale : uint8_t {
    none,
    half,
    half_min,
    half_zero,
    wide,
    power,
    super32,
    super,
    super16,
    super16_min,
    column
};
enum class RowType : uint8_t { f32, bf16, q8, i32, i8, q8t };  // i8: codes of a KV cache, never a buffer's

[[maybe_unused]] static constexpr size_t round_up(size_t x, size_t unit) { return (x + unit - 1) / unit * unit; }
[[maybe_unused]] static constexpr size_t groups_of(size_t k) { return (k + kGroup - 1) / kGroup; }

// What 4-bit codes are looked up in: 16 codes of 8 bits.
enum class Table : uint8_t { none, iq4, fp4 };
struct TableInfo {
    int8_t codes[16];
    int offset;  // added to the codes where a kernel looks them up
};
constexpr TableInfo kTables[] = {
    {},
    {{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 0},
    {{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, 12},  // e2m1 doubled, times half its scale
};
[[maybe_unused]] static constexpr const TableInfo& table_info(Table table) { return kTables[static_cast<int>(table)]; }

struct FormatInfo {
    const char* name;
    int bits;    // of a code, or of an index
    int offset;  // stored - code
    Scale scale;
    Table table = Table::none;
};
constexpr FormatInfo kFormats[] = {
    {"f32", 32, 0, Scale::none},
    {"bf16", 16, 0, Scale::none},
    {"int8", 8, 0, Scale::half},
    {"int4", 4, 8, Scale::half},
    {"int4m", 4, 0, Scale::half_min},
    {"int8f", 8, 0, Scale::wide},
    {"int4z", 4, 0, Scale::half_zero},
    {"int4k", 4, 0, Scale::super},
    {"int5", 5, 16, Scale::half},
    {"int5m", 5, 0, Scale::half_min},
    {"int5k", 5, 0, Scale::super},
    {"int6k", 6, 32, Scale::super16},
    {"int3k", 3, 4, Scale::super16},
    {"int2k", 2, 0, Scale::super16_min},
    {"int4n", 4, 0, Scale::half, Table::iq4},
    {"int4x", 4, 0, Scale::super32, Table::iq4},
    {"int4e", 4, 0, Scale::power, Table::fp4},
    {"int8t", 8, 0, Scale::column},
};
constexpr int kNumFormats = static_cast<int>(sizeof kFormats / sizeof kFormats[0]);

[[maybe_unused]] static constexpr const FormatInfo& info_of(WeightFormat format) {
    return kFormats[static_cast<int>(format)];
}
// Whether `name` is a format's, and which.
[[maybe_unused]] static constexpr bool find_format(std::string_view name, WeightFormat* found) {
    for (int i = 0; i < kNumFormats; ++i) {
        if (name == kFormats[i].name) {
            *found = static_cast<WeightFormat>(i);
            return true;
        }
    }
    return false;
}

// Bytes of meta for 16 columns: of a group, of a super group, and of a whole panel.
struct MetaBytes {
    size_t group, super, panel = 0;
};
[[maybe_unused]] static constexpr MetaBytes meta_of(Scale scale) {
    switch (scale) {
        case Scale::none: return {0, 0};
        case Scale::half: return {32, 0};
        case Scale::half_min:
        case Scale::wide: return {64, 0};
        case Scale::half_zero: return {48, 0};
        case Scale::power: return {16, 0};
        case Scale::super32: return {16, 32};
        case Scale::column: return {0, 0, 64};
        case Scale::super16: return {32, 32};
        case Scale::super:
        case Scale::super16_min: break;
    }
    return {32, 64};
}

// The row type a format multiplies with.
[[maybe_unused]] static constexpr RowType rows_for(WeightFormat format) {
    switch (format) {
        case WeightFormat::f32: return RowType::f32;
        case WeightFormat::bf16: return RowType::bf16;
        case WeightFormat::int8t: return RowType::q8t;
        default: return RowType::q8;
    }
}

// Bytes of one row of an activation buffer, which is also its stride.
[[maybe_unused]] static constexpr size_t row_bytes(RowType type, size_t width) {
    switch (type) {
        case RowType::bf16: return round_up(2 * width, kAlign);
        case RowType::q8: return round_up(kGroup * groups_of(width) + 8 * groups_of(width), kAlign);
        case RowType::q8t: return round_up(kGroup * groups_of(width) + 8, kAlign);
        case RowType::f32:
        case RowType::i32:
        case RowType::i8: break;
    }
    return round_up(4 * width, kAlign);
}
// Scales of q8 groups are powers of two, 2^-96 to 2^94 (or NaN): with a weight's scale that comes from f16, 2^-24 to
// 2^24, no product leaves the normal numbers. A group's magnitude is below kQ8Top, and counts as 0 below kQ8Least.
inline constexpr float kQ8Least = 0x1p-90f, kQ8Top = 0x1p100f;
// Where a q8 row keeps its parts: codes int8[32 G] from byte 0, then scale f32[G], then xsum f32[G].
[[maybe_unused]] static constexpr size_t q8_scales_at(size_t width) { return kGroup * groups_of(width); }
[[maybe_unused]] static constexpr size_t q8_sums_at(size_t width) { return (kGroup + 4) * groups_of(width); }
// And a q8t row: codes int8[32 G], then the row's scale f32, then the sum of its codes i32.
[[maybe_unused]] static constexpr size_t q8t_scale_at(size_t width) { return kGroup * groups_of(width); }
[[maybe_unused]] static constexpr size_t q8t_sum_at(size_t width) { return kGroup * groups_of(width) + 4; }
// The longest row whose products with codes of 8 bits add up in 31 bits.
inline constexpr int64_t kMaxTokenWidth = int64_t{1} << 17;

[[maybe_unused]] static constexpr size_t supers_of(size_t k) { return (groups_of(k) + kSuper - 1) / kSuper; }
// Bytes of a group's codes in a panel.
[[maybe_unused]] static constexpr size_t group_code_bytes(WeightFormat format) {
    return 64 * static_cast<size_t>(info_of(format).bits);
}
[[maybe_unused]] static constexpr size_t panel_code_bytes(WeightFormat format, size_t k) {
    if (format == WeightFormat::f32) return 64 * k;
    if (format == WeightFormat::bf16) return 64 * ((k + 1) / 2);
    return group_code_bytes(format) * groups_of(k);
}
[[maybe_unused]] static constexpr size_t panel_bytes(WeightFormat format, size_t k) {
    const MetaBytes meta = meta_of(info_of(format).scale);
    const size_t scales = meta.group * groups_of(k) + meta.super * supers_of(k) + meta.panel;
    return round_up(panel_code_bytes(format, k) + scales, kAlign);
}
[[maybe_unused]] static constexpr size_t panels_of(size_t n) { return (n + kPanel - 1) / kPanel; }
[[maybe_unused]] static constexpr size_t packed_bytes(WeightFormat format, size_t n, size_t k) {
    return panels_of(n) * panel_bytes(format, k);
}

struct LinearWeight {
    WeightFormat format;
    int64_t n;
    int64_t k;
    const uint8_t* panels;  // kAlign-aligned, packed_bytes(format, n, k)
};

// y = (x w^T (+ bias)) * scale; rows [row0, row1) times panels [panel0, panel1). Row r of the input lies at x + r *
// x_stride in the layout rows_for(weight.format); column c of output row r lies c elements behind out + r * out_stride
// (bytes).
struct LinearTask {
    LinearWeight weight;
    const uint8_t* x;
    size_t x_stride;
    uint8_t* out;
    size_t out_stride;
    RowType out_type;   // f32 or bf16
    bool accumulate;    // f32 only: out = out + y
    const float* bias;  // n numbers, or null
    float scale;        // of y; 1 for none
    int64_t row0, row1;
    int64_t panel0, panel1;
    uint8_t* scratch;  // kAlign-aligned, linear_scratch_bytes(format, k), one a thread
};

// The most rows a kernel treats together: their q8 form (or f32 form) should stay in a core's second-level cache.
[[maybe_unused]] static constexpr size_t linear_row_block(WeightFormat format, size_t k) {
    const size_t fit = (size_t{192} << 10) / row_bytes(rows_for(format), k) / 12 * 12;
    return fit < 12 ? 12 : fit > 240 ? 240 : fit;
}
// Scratch of one thread: unpacked codes of two panels, and two integers a group and row of a block.
[[maybe_unused]] static constexpr size_t linear_scratch_bytes(WeightFormat format, size_t k) {
    if (info_of(format).scale == Scale::none || info_of(format).scale == Scale::column) return kAlign;
    return 2 * 16 * kGroup * groups_of(k) + round_up(8 * groups_of(k) * linear_row_block(format, k), kAlign);
}

// What kernels.h collects for an ISA; each is defined in octavo::<isa> by linear*.cpp and quantize.cpp.
//
//   void linear_panels(const LinearTask& task);
//   void quantize_row(const float* x, int64_t width, uint8_t* row);
//       f32 numbers to a q8 row of row_bytes(q8, width); bytes past the sums are left alone.
//   void quantize_columns(const float* x, int64_t n, int64_t column, int64_t width, uint8_t* row);
//       The same of columns [column, column + n) of such a row, which begin and end with groups.
//   void quantize_token(const float* x, int64_t width, uint8_t* row);
//       f32 numbers to a q8t row of row_bytes(q8t, width); bytes past the sum are left alone.
//   void dequantize_row(const LinearWeight& weight, int64_t column, float* out);
//       The k numbers of one column (an embedding row of a packed head).
#define OCTAVO_DECLARE_LINEAR(isa)                                                                 \
    namespace isa {                                                                                \
    void linear_panels(const LinearTask& task);                                                    \
    void quantize_row(const float* x, int64_t width, uint8_t* row);                                \
    void quantize_columns(const float* x, int64_t n, int64_t column, int64_t width, uint8_t* row); \
    void quantize_token(const float* x, int64_t width, uint8_t* row);                              \
    void dequantize_row(const LinearWeight& weight, int64_t column, float* out);                   \
    }
OCTAVO_DECLARE_LINEAR(scalar)
OCTAVO_DECLARE_LINEAR(avx2)
OCTAVO_DECLARE_LINEAR(avx512vnni)
OCTAVO_DECLARE_LINEAR(avx512bf16)
#undef OCTAVO_DECLARE_LINEAR

}  // namespace octavo
