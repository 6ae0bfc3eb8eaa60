// See pack.h. One source row becomes one column: 4 bytes in every quad of its panel.
#include "octavo/pack.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "pack_convert.h"

namespace octavo {
namespace {

// A column of a panel as the packer sees it.
struct Column {
    uint8_t* codes;   // its 4 bytes of quad 0; the next quad is 64 bytes on
    uint16_t* scale;  // of group 0
    size_t meta;      // bytes to the next group's scale
};

Column column_of(const PackJob& job, int64_t column) {
    const size_t k = static_cast<size_t>(job.k);
    uint8_t* panel = job.dst + static_cast<size_t>(column / kPanel) * panel_bytes(job.format, k);
    const size_t lane = static_cast<size_t>(column % kPanel);
    return {panel + 4 * lane, reinterpret_cast<uint16_t*>(panel + panel_code_bytes(job.format, k)) + lane,
            group_meta_bytes(job.format)};
}

uint16_t* scale_at(const Column& c, size_t group) {
    return reinterpret_cast<uint16_t*>(reinterpret_cast<uint8_t*>(c.scale) + group * c.meta);
}

void put4(uint8_t* at, uint32_t quad) { memcpy(at, &quad, 4); }

uint16_t half_at(const uint8_t* p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

// 32 codes 0..15 from a file's 16 bytes (elements 0..15 low, 16..31 high) to four quads of nibble pairs.
void put_nibbles(uint8_t* at, const uint8_t* bytes) {
    for (int half = 0; half < 2; ++half) {
        uint64_t eight;
        memcpy(&eight, bytes + 8 * half, 8);
        const uint64_t low = eight & 0x0f0f0f0f0f0f0f0fu;
        const uint64_t high = eight >> 4 & 0x0f0f0f0f0f0f0f0fu;
        put4(at + 64 * half, static_cast<uint32_t>(low) | static_cast<uint32_t>(low >> 32) << 4);
        put4(at + 64 * half + 128, static_cast<uint32_t>(high) | static_cast<uint32_t>(high >> 32) << 4);
    }
}

// ---- block formats kept as they are
// -----------------------------------------------------------------------------------

void nibbles_to_nibbles(const PackJob& job, const uint8_t* row, const Column& c, bool has_min) {
    const size_t block = has_min ? 20 : 18;
    for (size_t g = 0; g < groups_of(static_cast<size_t>(job.k)); ++g, row += block) {
        uint16_t* scale = scale_at(c, g);
        scale[0] = half_at(row);
        if (has_min) scale[kPanel] = half_at(row + 2);
        put_nibbles(c.codes + 256 * g, row + (has_min ? 4 : 2));
    }
}

void bytes_to_bytes(const PackJob& job, const uint8_t* row, const Column& c) {
    for (size_t g = 0; g < groups_of(static_cast<size_t>(job.k)); ++g, row += 34) {
        *scale_at(c, g) = half_at(row);
        for (size_t quad = 0; quad < 8; ++quad) memcpy(c.codes + 512 * g + 64 * quad, row + 2 + 4 * quad, 4);
    }
}

void nibbles_to_bytes(const PackJob& job, const uint8_t* row, const Column& c) {
    for (size_t g = 0; g < groups_of(static_cast<size_t>(job.k)); ++g, row += 18) {
        *scale_at(c, g) = half_at(row);
        for (size_t i = 0; i < 32; ++i) {
            const int nibble = i < 16 ? row[2 + i] & 15 : row[2 + i - 16] >> 4;
            c.codes[512 * g + i / 4 * 64 + i % 4] = static_cast<uint8_t>(nibble - 8);
        }
    }
}

// ---- numbers ------------------------------------------------------------------------------------------------------

void floats_to_f32(const float* x, int64_t k, const Column& c) {
    for (int64_t i = 0; i < k; ++i) memcpy(c.codes + 64 * i, x + i, 4);
}

void floats_to_bf16(const float* x, int64_t k, const Column& c) {
    for (int64_t i = 0; i < k; i += 2) {
        const uint32_t even = convert::to_bf16(x[i]);
        const uint32_t odd = i + 1 < k ? convert::to_bf16(x[i + 1]) : 0;
        put4(c.codes + 32 * i, even | odd << 16);
    }
}

void floats_to_int8(const float* x, int64_t k, const Column& c) {
    for (int64_t g = 0; kGroup * g < k; ++g) {
        const int count = static_cast<int>(std::min<int64_t>(kGroup, k - kGroup * g));
        int8_t codes[kGroup] = {};
        *scale_at(c, static_cast<size_t>(g)) = convert::quantize_int8(x + kGroup * g, count, codes);
        for (int quad = 0; quad < 8; ++quad) memcpy(c.codes + 512 * g + 64 * quad, codes + 4 * quad, 4);
    }
}

void floats_to_int4m(const float* x, int64_t k, const Column& c) {
    for (int64_t g = 0; kGroup * g < k; ++g) {
        const int count = static_cast<int>(std::min<int64_t>(kGroup, k - kGroup * g));
        uint8_t codes[kGroup] = {};
        uint16_t* scale = scale_at(c, static_cast<size_t>(g));
        convert::quantize_int4m(x + kGroup * g, count, codes, scale, scale + kPanel);
        uint8_t* at = c.codes + 256 * g;
        for (int i = 0; i < kGroup; ++i) {
            if (i % 8 < 4) at[i / 8 * 64 + i % 4] = static_cast<uint8_t>(codes[i] | codes[i + 4] << 4);
        }
    }
}

void pack_row(const PackJob& job, const uint8_t* row, const Column& c, std::vector<float>& numbers) {
    switch (job.source) {
        case SourceFormat::q4_1:
            if (job.format == WeightFormat::int4m) return nibbles_to_nibbles(job, row, c, true);
            break;
        case SourceFormat::q4_0:
            if (job.format == WeightFormat::int4) return nibbles_to_nibbles(job, row, c, false);
            if (job.format == WeightFormat::int8) return nibbles_to_bytes(job, row, c);
            break;
        case SourceFormat::q8_0:
            if (job.format == WeightFormat::int8) return bytes_to_bytes(job, row, c);
            break;
        default: break;
    }
    const float* x;
    if (job.source == SourceFormat::f32 && reinterpret_cast<uintptr_t>(row) % 4 == 0) {
        x = reinterpret_cast<const float*>(row);
    } else {
        numbers.resize(static_cast<size_t>(job.k));
        convert::read_row(job.source, row, job.k, numbers.data());
        x = numbers.data();
    }
    switch (job.format) {
        case WeightFormat::f32: return floats_to_f32(x, job.k, c);
        case WeightFormat::bf16: return floats_to_bf16(x, job.k, c);
        case WeightFormat::int8: return floats_to_int8(x, job.k, c);
        case WeightFormat::int4m: return floats_to_int4m(x, job.k, c);
        case WeightFormat::int4: break;  // can_pack() refuses it
    }
}

// Columns behind the last one of a partly filled panel must multiply to nothing.
void clear_padding(const PackJob& job) {
    const size_t k = static_cast<size_t>(job.k);
    const size_t quads = panel_code_bytes(job.format, k) / 64;
    const size_t halves = group_meta_bytes(job.format) / 32;
    for (int64_t column = job.n_total; column % kPanel != 0; ++column) {
        const Column c = column_of(job, column);
        for (size_t quad = 0; quad < quads; ++quad) put4(c.codes + 64 * quad, 0);
        for (size_t g = 0; g < groups_of(k); ++g) {
            for (size_t half = 0; half < halves; ++half) scale_at(c, g)[half * kPanel] = 0;
        }
    }
}

}  // namespace

size_t source_row_bytes(SourceFormat source, size_t k) {
    switch (source) {
        case SourceFormat::f32: return 4 * k;
        case SourceFormat::f16:
        case SourceFormat::bf16: return 2 * k;
        case SourceFormat::q8_0: return k / kGroup * 34;
        case SourceFormat::q4_0: return k / kGroup * 18;
        case SourceFormat::q4_1: break;
    }
    return k / kGroup * 20;
}

bool can_pack(WeightFormat format, SourceFormat source) {
    switch (source) {
        case SourceFormat::f32:
        case SourceFormat::f16:
        case SourceFormat::bf16: return format != WeightFormat::int4;
        case SourceFormat::q8_0: return format == WeightFormat::int8 || format == WeightFormat::f32;
        case SourceFormat::q4_0:
            return format == WeightFormat::int4 || format == WeightFormat::int8 || format == WeightFormat::f32;
        case SourceFormat::q4_1: break;
    }
    return format == WeightFormat::int4m || format == WeightFormat::f32;
}

void pack_rows(const PackJob& job, int64_t row0, int64_t row1) {
    const size_t bytes = source_row_bytes(job.source, static_cast<size_t>(job.k));
    std::vector<float> numbers;
    for (int64_t row = row0; row < row1; ++row) {
        pack_row(job, job.src + static_cast<size_t>(row) * bytes, column_of(job, job.col0 + row), numbers);
    }
    if (row1 == job.n && job.col0 + job.n == job.n_total) clear_padding(job);
}

void pack(const PackJob& job, int threads) {
    // Whole panels to a thread, and none for so few bytes that starting it costs more.
    const size_t bytes = source_row_bytes(job.source, static_cast<size_t>(job.k)) * static_cast<size_t>(job.n);
    const int64_t useful = static_cast<int64_t>(bytes / (size_t{256} << 10)) + 1;
    const int64_t workers = std::clamp<int64_t>(std::min<int64_t>(threads, useful), 1, 256);
    const int64_t piece = static_cast<int64_t>(round_up(static_cast<size_t>((job.n + workers - 1) / workers), kPanel));
    std::vector<std::thread> others;
    for (int64_t row = piece; row < job.n; row += piece) {
        others.emplace_back([&job, row, piece] { pack_rows(job, row, std::min(row + piece, job.n)); });
    }
    pack_rows(job, 0, std::min(piece, job.n));
    for (std::thread& other : others) other.join();
}

void unpack_rows(WeightFormat format, int64_t n, int64_t k, const uint8_t* packed, const int32_t* rows, int64_t count,
                 float* out) {
    const LinearWeight weight{format, n, k, packed};
    for (int64_t i = 0; i < count; ++i) scalar::dequantize_row(weight, rows[i], out + i * k);
}

}  // namespace octavo
