// See pack.h. One source row becomes one column: 4 bytes in every quad of its panel.
#include "octavo/pack.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "pack_blocks.h"
#include "pack_convert.h"

namespace octavo {
namespace {

// A column of a panel as the packer sees it.
struct Column {
    uint8_t* codes;   // its 4 bytes of quad 0; the next quad is 64 bytes on
    uint8_t* groups;  // meta of group 0
    uint8_t* supers;  // meta of super group 0
    size_t lane;
};

Column column_of(const PackJob& job, int64_t column) {
    const size_t k = static_cast<size_t>(job.k);
    uint8_t* panel = job.dst + static_cast<size_t>(column / kPanel) * panel_bytes(job.format, k);
    const size_t lane = static_cast<size_t>(column % kPanel);
    uint8_t* meta = panel + panel_code_bytes(job.format, k);
    return {panel + 4 * lane, meta + meta_of(info_of(job.format).scale).super * supers_of(k), meta, lane};
}

void put_half(uint8_t* at, size_t lane, uint16_t half) { memcpy(at + 2 * lane, &half, 2); }

void put4(uint8_t* at, uint32_t quad) { memcpy(at, &quad, 4); }

// ---- block formats kept as they are -------------------------------------------------------------------------------

// Two bits of each of four quads to a byte; `shift` of a code are below them.
uint32_t pair_plane(const uint32_t* quads, int shift) {
    uint32_t plane = 0;
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) plane |= (quads[q] >> shift & 0x03030303u) << 2 * q;
    return plane;
}

// Bit `shift` of each of eight quads to a byte.
uint32_t bit_plane(const uint32_t* quads, int shift) {
    uint32_t plane = 0;
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) plane |= (quads[q] >> shift & 0x01010101u) << q;
    return plane;
}

// Codes that are stored with `offset` added, to a format that adds its own.
void put_codes(WeightFormat format, size_t g, const uint32_t* codes, int offset, const Column& c) {
    const FormatInfo& info = info_of(format);
    uint8_t* at = c.codes + g * group_code_bytes(format);
    uint32_t quads[8];
    memcpy(quads, codes, sizeof quads);
    const uint32_t more = static_cast<uint32_t>(std::abs(info.offset - offset)) * 0x01010101u;
    for (int q = 0; q < 8 && more != 0; ++q) {
        // Byte by byte: what is there is below 128 where an offset changes, so nothing is carried or borrowed.
        quads[q] = info.offset >= offset ? codes[q] + more : ((codes[q] | 0x80808080u) - more) ^ 0x80808080u;
    }
    switch (info.bits) {
        case 8:
            for (int q = 0; q < 8; ++q) put4(at + 64 * q, quads[q]);
            return;
        case 3: put4(at + 128, bit_plane(quads, 2)); [[fallthrough]];
        case 2: put4(at, pair_plane(quads, 0)), put4(at + 64, pair_plane(quads + 4, 0)); return;
        case 5: put4(at + 256, bit_plane(quads, 4)); break;
        case 6: put4(at + 256, pair_plane(quads, 4)), put4(at + 320, pair_plane(quads + 4, 4)); break;
        default: break;
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        put4(at + 64 * j, (quads[2 * j] & 0x0f0f0f0fu) | (quads[2 * j + 1] & 0x0f0f0f0fu) << 4);
    }
}

void put_scales(const PackJob& job, Scale from, size_t g, const blocks::Group& group, const Column& c) {
    const Scale scale = info_of(job.format).scale;
    const MetaBytes bytes = meta_of(scale);
    uint8_t* at = c.groups + g * bytes.group;
    uint8_t* super = c.supers + g / kSuper * bytes.super;
    if (bytes.super != 0) put_half(super, c.lane, group.scale);
    switch (scale) {
        case Scale::none: return;
        case Scale::half: return put_half(at, c.lane, group.scale);
        case Scale::half_min: return put_half(at, c.lane, group.scale), put_half(at + 32, c.lane, group.minimum);
        case Scale::half_zero: put_half(at, c.lane, group.scale), at[32 + c.lane] = group.small[0]; return;
        case Scale::wide: {
            const float wide = from == Scale::wide ? group.wide : convert::from_f16(group.scale);
            memcpy(at + 4 * c.lane, &wide, 4);
            return;
        }
        case Scale::super:
        case Scale::super16_min: put_half(super + 32, c.lane, group.minimum); break;
        case Scale::super16: break;
    }
    at[c.lane] = group.small[0];
    at[16 + c.lane] = group.small[1];
}

void blocks_to_codes(const PackJob& job, const uint8_t* row, const Column& c) {
    const SourceInfo& info = source_info(job.source);
    blocks::Group group{};
    for (size_t g = 0; g < groups_of(static_cast<size_t>(job.k)); ++g) {
        blocks::read_group(job.source, row, g, group);
        put_codes(job.format, g, group.quads, info.offset, c);
        put_scales(job, info.scale, g, group, c);
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
        put_half(c.groups + 32 * g, c.lane, convert::quantize_int8(x + kGroup * g, count, codes));
        for (int quad = 0; quad < 8; ++quad) memcpy(c.codes + 512 * g + 64 * quad, codes + 4 * quad, 4);
    }
}

void floats_to_int4m(const PackJob& job, const float* x, const Column& c) {
    for (int64_t g = 0; kGroup * g < job.k; ++g) {
        const int count = static_cast<int>(std::min<int64_t>(kGroup, job.k - kGroup * g));
        uint8_t codes[kGroup] = {};
        blocks::Group group{};
        convert::quantize_int4m(x + kGroup * g, count, codes, &group.scale, &group.minimum);
        memcpy(group.quads, codes, kGroup);
        put_codes(job.format, static_cast<size_t>(g), group.quads, 0, c);
        put_scales(job, Scale::half_min, static_cast<size_t>(g), group, c);
    }
}

// A row's numbers, in place where they are floats already.
const float* numbers_of(const PackJob& job, const uint8_t* row, std::vector<float>& room) {
    if (job.source == SourceFormat::f32 && reinterpret_cast<uintptr_t>(row) % 4 == 0) {
        return reinterpret_cast<const float*>(row);
    }
    room.resize(static_cast<size_t>(job.k));
    if (source_info(job.source).scale == Scale::none) {
        convert::read_floats(job.source, row, job.k, room.data());
        return room.data();
    }
    blocks::Group group{};
    for (size_t g = 0; g < groups_of(static_cast<size_t>(job.k)); ++g) {
        blocks::read_group(job.source, row, g, group);
        blocks::to_numbers(job.source, group, room.data() + kGroup * g);
    }
    return room.data();
}

void pack_row(const PackJob& job, const uint8_t* row, const Column& c, std::vector<float>& room) {
    const bool coded = source_info(job.source).scale != Scale::none;
    if (coded && info_of(job.format).scale != Scale::none) return blocks_to_codes(job, row, c);
    const float* x = numbers_of(job, row, room);
    switch (job.format) {
        case WeightFormat::f32: return floats_to_f32(x, job.k, c);
        case WeightFormat::bf16: return floats_to_bf16(x, job.k, c);
        case WeightFormat::int8: return floats_to_int8(x, job.k, c);
        case WeightFormat::int4m: return floats_to_int4m(job, x, c);
        default: return;  // can_pack() refuses it
    }
}

// Columns behind the last one of a partly filled panel must multiply to nothing.
void clear_padding(const PackJob& job) {
    const size_t k = static_cast<size_t>(job.k);
    const blocks::Group nothing{};
    for (int64_t column = job.n_total; column % kPanel != 0; ++column) {
        const Column c = column_of(job, column);
        if (info_of(job.format).scale == Scale::none) {
            for (size_t quad = 0; quad < panel_code_bytes(job.format, k) / 64; ++quad) put4(c.codes + 64 * quad, 0);
            continue;
        }
        for (size_t g = 0; g < groups_of(k); ++g) {
            put_codes(job.format, g, nothing.quads, 0, c);
            put_scales(job, Scale::wide, g, nothing, c);
        }
    }
}

}  // namespace

size_t source_row_bytes(SourceFormat source, size_t k) {
    const SourceInfo& info = source_info(source);
    return k / static_cast<size_t>(info.elements) * static_cast<size_t>(info.bytes);
}

bool can_pack(WeightFormat format, SourceFormat source) {
    const SourceInfo& from = source_info(source);
    const FormatInfo& to = info_of(format);
    if (format == WeightFormat::f32) return true;
    if (from.scale == Scale::none) {
        return format == WeightFormat::bf16 || format == WeightFormat::int8 || format == WeightFormat::int4m;
    }
    const bool same = to.scale == from.scale || (to.scale == Scale::wide && from.scale == Scale::half);
    const int low = to.bits == 8 ? -128 : -to.offset;
    return same && from.low >= low && from.high < low + (1 << to.bits);
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
