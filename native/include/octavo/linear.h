// Packed weights, quantised rows, and the linear kernels over them: plain data and declarations.
//
// Included by baseline code (packing, binding, planning) and by every ISA's kernels, so all functions here are static.
//
// A weight of n outputs over k inputs is packed in panels of 16 outputs (columns). A panel is contiguous, 64-byte
// aligned, and holds a codes region and then, for the quantised formats, a meta region:
//
//   f32    [k][16] f32
//   bf16   [k / 2][16][2] bf16                         element 2p, then 2p + 1
//   int8   [k / 4][16][4] int8          + [group][16] f16 scale
//   int4   [k / 8][16][4] bytes         + [group][16] f16 scale         low nibble k = 8j + b, high nibble 8j + 4 + b
//   int4m  [k / 8][16][4] bytes         + [group][16 f16 scale, 16 f16 min]
//
// A group is 32 inputs. k is padded with zeros to 32 (quantised), 2 (bf16) or 1; n is padded with zero columns to 16.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

inline constexpr int kPanel = 16;     // columns of a panel
inline constexpr int kGroup = 32;     // inputs that share a scale
inline constexpr size_t kAlign = 64;  // of panels and of rows

enum class WeightFormat : uint8_t { f32, bf16, int8, int4, int4m };
enum class RowType : uint8_t { f32, bf16, q8, i32 };

[[maybe_unused]] static constexpr size_t round_up(size_t x, size_t unit) { return (x + unit - 1) / unit * unit; }
[[maybe_unused]] static constexpr size_t groups_of(size_t k) { return (k + kGroup - 1) / kGroup; }

// The row type a format multiplies with.
[[maybe_unused]] static constexpr RowType rows_for(WeightFormat format) {
    return format == WeightFormat::f32 ? RowType::f32 : format == WeightFormat::bf16 ? RowType::bf16 : RowType::q8;
}

// Bytes of one row of an activation buffer, which is also its stride.
[[maybe_unused]] static constexpr size_t row_bytes(RowType type, size_t width) {
    switch (type) {
        case RowType::bf16: return round_up(2 * width, kAlign);
        case RowType::q8: return round_up(kGroup * groups_of(width) + 8 * groups_of(width), kAlign);
        case RowType::f32:
        case RowType::i32: break;
    }
    return round_up(4 * width, kAlign);
}
// Where a q8 row keeps its parts: codes int8[32 G] from byte 0, then scale f32[G], then xsum f32[G].
[[maybe_unused]] static constexpr size_t q8_scales_at(size_t width) { return kGroup * groups_of(width); }
[[maybe_unused]] static constexpr size_t q8_sums_at(size_t width) { return (kGroup + 4) * groups_of(width); }

[[maybe_unused]] static constexpr size_t panel_code_bytes(WeightFormat format, size_t k) {
    switch (format) {
        case WeightFormat::f32: return 64 * k;
        case WeightFormat::bf16: return 64 * ((k + 1) / 2);
        case WeightFormat::int8: return 16 * kGroup * groups_of(k);
        case WeightFormat::int4:
        case WeightFormat::int4m: break;
    }
    return 8 * kGroup * groups_of(k);
}
// Bytes of scales (and mins) a group has in a panel.
[[maybe_unused]] static constexpr size_t group_meta_bytes(WeightFormat format) {
    if (format == WeightFormat::f32 || format == WeightFormat::bf16) return 0;
    return format == WeightFormat::int4m ? 64 : 32;
}
[[maybe_unused]] static constexpr size_t panel_bytes(WeightFormat format, size_t k) {
    return round_up(panel_code_bytes(format, k) + group_meta_bytes(format) * groups_of(k), kAlign);
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
// Scratch of one thread: unpacked codes of two panels, and one integer a group and row of a block.
[[maybe_unused]] static constexpr size_t linear_scratch_bytes(WeightFormat format, size_t k) {
    if (group_meta_bytes(format) == 0) return kAlign;
    return 2 * 16 * kGroup * groups_of(k) + round_up(4 * groups_of(k) * linear_row_block(format, k), kAlign);
}

// What kernels.h collects for an ISA; each is defined in octavo::<isa> by linear.cpp and quantize.cpp.
//
//   void linear_panels(const LinearTask& task);
//   void quantize_row(const float* x, int64_t width, uint8_t* row);
//       f32 numbers to a q8 row of row_bytes(q8, width); bytes past the sums are left alone.
//   void dequantize_row(const LinearWeight& weight, int64_t column, float* out);
//       The k numbers of one column (an embedding row of a packed head).
#define OCTAVO_DECLARE_LINEAR(isa)                                               \
    namespace isa {                                                              \
    void linear_panels(const LinearTask& task);                                  \
    void quantize_row(const float* x, int64_t width, uint8_t* row);              \
    void dequantize_row(const LinearWeight& weight, int64_t column, float* out); \
    }
OCTAVO_DECLARE_LINEAR(scalar)
OCTAVO_DECLARE_LINEAR(avx2)
OCTAVO_DECLARE_LINEAR(avx512vnni)
OCTAVO_DECLARE_LINEAR(avx512bf16)
#undef OCTAVO_DECLARE_LINEAR

}  // namespace octavo
