// Reading and writing rows of views as f32. For kernel sources only.
#pragma once
#include "octavo/kernels.h"
#include "octavo/simd.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

inline std::uint8_t* row_of(const View& v, std::int64_t row) { return v.base + row * v.row_bytes; }

inline void load_columns(const std::uint8_t* row, Dtype dtype, std::int32_t column, std::int32_t n, float* out) {
    if (dtype == Dtype::f32) {
        memcpy(out, row + 4 * static_cast<std::int64_t>(column), 4 * static_cast<std::size_t>(n));
        return;
    }
    const auto* p = reinterpret_cast<const std::uint16_t*>(row) + column;
    std::int32_t i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, load_bf16(p + i));
    if (i < n) store_first(out + i, load_bf16_first(p + i, n - i), n - i);
}

// The row's heads * width numbers: in place where they are f32 side by side, else in `temp`.
inline const float* read_row(const View& v, std::int64_t row, float* temp) {
    const std::uint8_t* p = row_of(v, row);
    if (v.dtype == Dtype::f32 && v.dense) return reinterpret_cast<const float*>(p) + v.offset;
    if (v.dense) {
        load_columns(p, v.dtype, v.offset, v.heads * v.width, temp);
    } else {
        for (std::int32_t h = 0; h < v.heads; h++)
            load_columns(p, v.dtype, v.offset + h * v.stride, v.width, temp + h * v.width);
    }
    return temp;
}

// Where to put the row's numbers before write_row.
inline float* begin_row(const View& v, std::int64_t row, float* temp) {
    if (v.dtype == Dtype::f32 && v.dense) return reinterpret_cast<float*>(row_of(v, row)) + v.offset;
    return temp;
}

inline void from_f32(std::uint8_t* row, Dtype dtype, std::int32_t column, std::int32_t n, const float* in) {
    if (dtype == Dtype::f32) {
        memcpy(row + 4 * static_cast<std::int64_t>(column), in, 4 * static_cast<std::size_t>(n));
        return;
    }
    auto* p = reinterpret_cast<std::uint16_t*>(row) + column;
    std::int32_t i = 0;
    for (; i + 16 <= n; i += 16) store_bf16(p + i, load(in + i));
    if (i < n) store_bf16_first(p + i, load_first(in + i, n - i), n - i);
}

inline void store_columns(const View& v, std::uint8_t* row, std::int32_t column, std::int32_t n, const float* in) {
    if (v.dtype == Dtype::q8) {
        quantize_columns(in, n, column, v.columns, row);
    } else if (v.dtype == Dtype::q8t) {
        quantize_token(in, n, row);  // all of it: q8_fits
    } else {
        from_f32(row, v.dtype, column, n, in);
    }
}

inline void write_row(const View& v, std::int64_t row, const float* in) {
    std::uint8_t* p = row_of(v, row);
    if (v.dtype == Dtype::f32 && v.dense && reinterpret_cast<const float*>(p) + v.offset == in) return;
    if (v.dense) {
        store_columns(v, p, v.offset, v.heads * v.width, in);
    } else {
        for (std::int32_t h = 0; h < v.heads; h++)
            store_columns(v, p, v.offset + h * v.stride, v.width, in + h * v.width);
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA_NS
