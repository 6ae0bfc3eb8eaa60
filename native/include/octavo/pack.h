// Weights from a file's row-major bytes into panels (linear.h). Baseline code: its cost is memory, not arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/linear.h"

namespace octavo {

enum class SourceFormat : uint8_t { f32, f16, bf16, q8_0, q4_0, q4_1 };

// Bytes of one source row of k elements. The block formats need k to be a multiple of 32.
size_t source_row_bytes(SourceFormat source, size_t k);

// Whether pack() takes the pair: lossless or upward conversions, and floats to int8 and int4m.
//
//   f32, f16, bf16 -> f32, bf16 (rounded), int8, int4m; q8_0 -> int8, f32; q4_0 -> int4, int8, f32; q4_1 -> int4m, f32
bool can_pack(WeightFormat format, SourceFormat source);

struct PackJob {
    WeightFormat format;
    SourceFormat source;
    int64_t n, k;        // rows of the source and their length
    const uint8_t* src;  // n * source_row_bytes(source, k)
    uint8_t* dst;        // packed_bytes(format, n_total, k), 64-byte aligned
    int64_t col0;        // column of dst that takes source row 0
    int64_t n_total;     // columns of dst
};

// Source rows [row0, row1). The job that holds the last column also zeroes the columns that pad its panel. Distinct
// rows touch distinct bytes: any threads may share a job.
void pack_rows(const PackJob& job, int64_t row0, int64_t row1);

// The whole job on up to `threads` threads of its own.
void pack(const PackJob& job, int threads);

// Dequantised numbers of chosen source rows into out[count][k].
void unpack_rows(WeightFormat format, int64_t n, int64_t k, const uint8_t* packed, const int32_t* rows, int64_t count,
                 float* out);

}  // namespace octavo
