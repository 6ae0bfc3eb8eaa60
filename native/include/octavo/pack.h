// Weights from a file's row-major bytes into panels (linear.h). Baseline code: its cost is memory, not arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "octavo/linear.h"

namespace octavo {

// In the order of kSources.
enum class SourceFormat : uint8_t {
    f32,
    f16,
    bf16,
    q8_0,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    iq4_nl,
    iq4_xs,
    mxfp4,
    z4,
    s8,
    q8_0c,
    s8c
};
struct SourceInfo {
    const char* name;
    int elements, bytes;  // of a block
    Scale scale;
    int low, high;  // codes
    int offset;     // what the file stores is code + offset, or where there is a table, its index there
    Table table = Table::none;
    bool column = false;  // all blocks of a row have the same scale
};
inline constexpr SourceInfo kSources[] = {
    {"f32", 1, 4, Scale::none, 0, 0, 0},
    {"f16", 1, 2, Scale::none, 0, 0, 0},
    {"bf16", 1, 2, Scale::none, 0, 0, 0},
    {"q8_0", 32, 34, Scale::half, -128, 127, 0},
    {"q4_0", 32, 18, Scale::half, -8, 7, 8},
    {"q4_1", 32, 20, Scale::half_min, 0, 15, 0},
    {"q5_0", 32, 22, Scale::half, -16, 15, 16},
    {"q5_1", 32, 24, Scale::half_min, 0, 31, 0},
    {"q2_k", 256, 84, Scale::super16_min, 0, 3, 0},
    {"q3_k", 256, 110, Scale::super16, -4, 3, 4},
    {"q4_k", 256, 144, Scale::super, 0, 15, 0},
    {"q5_k", 256, 176, Scale::super, 0, 31, 0},
    {"q6_k", 256, 210, Scale::super16, -32, 31, 32},
    {"iq4_nl", 32, 18, Scale::half, -127, 113, 0, Table::iq4},
    {"iq4_xs", 256, 136, Scale::super32, -127, 113, 0, Table::iq4},
    {"mxfp4", 32, 17, Scale::power, -12, 12, 0, Table::fp4},
    {"z4", 32, 19, Scale::half_zero, 0, 15, 0},
    {"s8", 32, 36, Scale::wide, -128, 127, 0},
    {"q8_0c", 32, 34, Scale::half, -128, 127, 0, Table::none, true},
    {"s8c", 32, 36, Scale::wide, -128, 127, 0, Table::none, true},
};
inline constexpr int kNumSources = static_cast<int>(sizeof kSources / sizeof kSources[0]);

[[maybe_unused]] static constexpr const SourceInfo& source_info(SourceFormat source) {
    return kSources[static_cast<int>(source)];
}
[[maybe_unused]] static constexpr bool find_source(std::string_view name, SourceFormat* found) {
    for (int i = 0; i < kNumSources; ++i) {
        if (name == kSources[i].name) {
            *found = static_cast<SourceFormat>(i);
            return true;
        }
    }
    return false;
}

// Formats and sources by their names. Throw std::invalid_argument for others.
WeightFormat format_of(const std::string& name);
SourceFormat source_of(const std::string& name);

// Bytes of one source row of k elements, a multiple of the source's block.
size_t source_row_bytes(SourceFormat source, size_t k);

// Whether pack() takes the pair: every format that holds the source's codes (or has its table) and its kind of scale,
// f32 for all, and floats to bf16 (rounded), int8 and int4m (quantised).
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
