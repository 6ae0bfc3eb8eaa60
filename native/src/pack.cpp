// See pack.h. One source row becomes one column: 4 bytes in every quad of its panel.
#include "octavo/pack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
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
template <WeightFormat format, int offset>
void put_codes(size_t g, const uint32_t* codes, const Column& c) {
    constexpr FormatInfo info = info_of(format);
    uint8_t* at = c.codes + g * group_code_bytes(format);
    uint32_t quads[8];
    memcpy(quads, codes, sizeof quads);
    constexpr uint32_t more =
        static_cast<uint32_t>(info.offset >= offset ? info.offset - offset : offset - info.offset) * 0x01010101u;
#pragma GCC unroll 8
    for (int q = 0; q < 8 && more != 0; ++q) {
        // Byte by byte: what is there is below 128 where an offset changes, so nothing is carried or borrowed.
        quads[q] = info.offset >= offset ? codes[q] + more : ((codes[q] | 0x80808080u) - more) ^ 0x80808080u;
    }
    if constexpr (info.bits == 8) {
#pragma GCC unroll 8
        for (int q = 0; q < 8; ++q) put4(at + 64 * q, quads[q]);
        return;
    }
    if constexpr (info.bits == 3) put4(at + 128, bit_plane(quads, 2));
    if constexpr (info.bits <= 3) {
        put4(at, pair_plane(quads, 0)), put4(at + 64, pair_plane(quads + 4, 0));
        return;
    }
    if constexpr (info.bits == 5) put4(at + 256, bit_plane(quads, 4));
    if constexpr (info.bits == 6) put4(at + 256, pair_plane(quads, 4)), put4(at + 320, pair_plane(quads + 4, 4));
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        put4(at + 64 * j, (quads[2 * j] & 0x0f0f0f0fu) | (quads[2 * j + 1] & 0x0f0f0f0fu) << 4);
    }
}

template <WeightFormat format, Scale from>
void put_scales(size_t g, const blocks::Group& group, const Column& c) {
    constexpr Scale scale = info_of(format).scale;
    constexpr MetaBytes bytes = meta_of(scale);
    uint8_t* at = c.groups + g * bytes.group;
    if constexpr (bytes.super != 0) {
        uint8_t* super = c.supers + g / kSuper * bytes.super;
        put_half(super, c.lane, group.scale);
        if constexpr (bytes.super > 32) put_half(super + 32, c.lane, group.minimum);
        at[c.lane] = group.small[0];
        if constexpr (bytes.group > 16) at[16 + c.lane] = group.small[1];
    } else if constexpr (scale == Scale::power) {
        at[c.lane] = group.small[0];
    } else if constexpr (scale == Scale::column) {
        const float wide = blocks::wide_scale<from>(group);
        if (g == 0) memcpy(at + 4 * c.lane, &wide, 4);
    } else if constexpr (scale == Scale::wide) {
        const float wide = blocks::wide_scale<from>(group);
        memcpy(at + 4 * c.lane, &wide, 4);
    } else {
        put_half(at, c.lane, group.scale);
        if constexpr (scale == Scale::half_min) put_half(at + 32, c.lane, group.minimum);
        if constexpr (scale == Scale::half_zero) at[32 + c.lane] = group.small[0];
    }
}

// Whether a format holds a block source's codes (a table its indices) and its kind of scale.
constexpr bool keeps(WeightFormat format, SourceFormat source) {
    const SourceInfo& from = source_info(source);
    const FormatInfo& to = info_of(format);
    if (from.scale == Scale::none || to.scale == Scale::none) return false;
    if (to.scale == Scale::column) return from.column;
    const bool same = to.scale == from.scale || (to.scale == Scale::wide && blocks::has_wide_scale(from.scale));
    if (to.table != Table::none) return same && to.table == from.table;
    const int low = to.bits == 8 ? -128 : -to.offset;
    return same && from.low >= low && from.high < low + (1 << to.bits);
}

// One row of a pair, with everything about the two known to the compiler: three times as fast as asking the tables for
// each group.
using PackRow = void (*)(const uint8_t* row, size_t groups, const Column& c);
template <WeightFormat format, SourceFormat source>
void blocks_to_codes(const uint8_t* row, size_t groups, const Column& c) {
    constexpr SourceInfo info = source_info(source);
    blocks::Group group{};
    for (size_t g = 0; g < groups; ++g) {
        blocks::read_group<source>(row, g, group);
        if constexpr (info.table != info_of(format).table) blocks::look_up(info.table, group);
        put_codes<format, info.offset>(g, group.quads, c);
        put_scales<format, info.scale>(g, group, c);
    }
}

constexpr size_t kNumPairs = size_t{kNumFormats} * kNumSources;
template <size_t pair>
constexpr PackRow pair_packer() {
    constexpr WeightFormat format = static_cast<WeightFormat>(pair / kNumSources);
    constexpr SourceFormat source = static_cast<SourceFormat>(pair % kNumSources);
    if constexpr (keeps(format, source)) return blocks_to_codes<format, source>;
    return nullptr;
}
template <size_t... pair>
constexpr std::array<PackRow, kNumPairs> pair_packers(std::index_sequence<pair...>) {
    return {pair_packer<pair>()...};
}
// Null where a pair would lose bits.
constexpr std::array<PackRow, kNumPairs> kPackers = pair_packers(std::make_index_sequence<kNumPairs>());

// A row of a block source as numbers.
using ReadRow = void (*)(const uint8_t* row, size_t groups, float* out);
template <SourceFormat source>
void blocks_to_numbers(const uint8_t* row, size_t groups, float* out) {
    blocks::Group group{};
    for (size_t g = 0; g < groups; ++g) {
        blocks::read_group<source>(row, g, group);
        if constexpr (source_info(source).table != Table::none) blocks::look_up(source_info(source).table, group);
        blocks::to_numbers(source, group, out + kGroup * g);
    }
}
template <size_t source>
constexpr ReadRow reader() {
    if constexpr (kSources[source].scale == Scale::none)
        return nullptr;
    else
        return blocks_to_numbers<static_cast<SourceFormat>(source)>;
}
template <size_t... source>
constexpr std::array<ReadRow, kNumSources> readers(std::index_sequence<source...>) {
    return {reader<source>()...};
}
constexpr std::array<ReadRow, kNumSources> kReaders = readers(std::make_index_sequence<kNumSources>());

// A column of zeros.
using ClearColumn = void (*)(size_t groups, const Column& c);
template <WeightFormat format>
void clear_column(size_t groups, const Column& c) {
    const blocks::Group nothing{};
    for (size_t g = 0; g < groups; ++g) {
        put_codes<format, 0>(g, nothing.quads, c);
        put_scales<format, Scale::wide>(g, nothing, c);
    }
}
template <size_t format>
constexpr ClearColumn clearer() {
    if constexpr (kFormats[format].scale == Scale::none)
        return nullptr;
    else
        return clear_column<static_cast<WeightFormat>(format)>;
}
template <size_t... format>
constexpr std::array<ClearColumn, kNumFormats> clearers(std::index_sequence<format...>) {
    return {clearer<format>()...};
}
constexpr std::array<ClearColumn, kNumFormats> kClearers = clearers(std::make_index_sequence<kNumFormats>());

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
        put_codes<WeightFormat::int4m, 0>(static_cast<size_t>(g), group.quads, c);
        put_scales<WeightFormat::int4m, Scale::half_min>(static_cast<size_t>(g), group, c);
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
    kReaders[static_cast<size_t>(job.source)](row, groups_of(static_cast<size_t>(job.k)), room.data());
    return room.data();
}

void pack_row(const PackJob& job, const uint8_t* row, const Column& c, std::vector<float>& room) {
    const size_t pair = static_cast<size_t>(job.format) * kNumSources + static_cast<size_t>(job.source);
    if (kPackers[pair] != nullptr) return kPackers[pair](row, groups_of(static_cast<size_t>(job.k)), c);
    const float* x = numbers_of(job, row, room);
    switch (job.format) {
        case WeightFormat::f32: return floats_to_f32(x, job.k, c);
        case WeightFormat::bf16: return floats_to_bf16(x, job.k, c);
        case WeightFormat::int8: return floats_to_int8(x, job.k, c);
        case WeightFormat::int4m: return floats_to_int4m(job, x, c);
        default: break;  // can_pack() refuses it
    }
}

// Columns behind the last one of a partly filled panel must multiply to nothing.
void clear_padding(const PackJob& job) {
    const size_t k = static_cast<size_t>(job.k);
    const ClearColumn clear = kClearers[static_cast<size_t>(job.format)];
    for (int64_t column = job.n_total; column % kPanel != 0; ++column) {
        const Column c = column_of(job, column);
        if (clear != nullptr) {
            clear(groups_of(k), c);
            continue;
        }
        for (size_t quad = 0; quad < panel_code_bytes(job.format, k) / 64; ++quad) put4(c.codes + 64 * quad, 0);
    }
}

template <class Row, size_t count>
[[noreturn]] void refuse_name(const char* what, const std::string& name, const Row (&table)[count]) {
    std::string allowed;
    for (const Row& row : table) allowed += std::string(allowed.empty() ? "" : ", ") + row.name;
    throw std::invalid_argument(std::string(what) + ": got '" + name + "', allowed: " + allowed);
}

}  // namespace

WeightFormat format_of(const std::string& name) {
    WeightFormat format;
    if (!find_format(name, &format)) refuse_name("format", name, kFormats);
    return format;
}

SourceFormat source_of(const std::string& name) {
    SourceFormat source;
    if (!find_source(name, &source)) refuse_name("source", name, kSources);
    return source;
}

size_t source_row_bytes(SourceFormat source, size_t k) {
    const SourceInfo& info = source_info(source);
    return k / static_cast<size_t>(info.elements) * static_cast<size_t>(info.bytes);
}

bool can_pack(WeightFormat format, SourceFormat source) {
    if (format == WeightFormat::f32) return true;
    if (source_info(source).scale == Scale::none) {
        return format == WeightFormat::bf16 || format == WeightFormat::int8 || format == WeightFormat::int4m;
    }
    return keeps(format, source);
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
    if (!can_pack(job.format, job.source)) {
        throw std::invalid_argument(std::string("pack: ") + source_info(job.source).name + " to " +
                                    info_of(job.format).name + " would lose bits");
    }
    // Whole panels to a thread, and none for so few bytes that starting it costs more.
    const size_t bytes = source_row_bytes(job.source, static_cast<size_t>(job.k)) * static_cast<size_t>(job.n);
    const int64_t useful = static_cast<int64_t>(bytes / (size_t{256} << 10)) + 1;
    const int64_t workers = std::clamp<int64_t>(std::min<int64_t>(threads, useful), 1, 256);
    const int64_t piece = static_cast<int64_t>(round_up(static_cast<size_t>((job.n + workers - 1) / workers), kPanel));
    std::vector<std::jthread> others;  // joined on every way out: a thread may be refused, or memory
    for (int64_t row = piece; row < job.n; row += piece) {
        others.emplace_back([&job, row, piece] { pack_rows(job, row, std::min(row + piece, job.n)); });
    }
    pack_rows(job, 0, std::min(piece, job.n));
}

void unpack_rows(WeightFormat format, int64_t n, int64_t k, const uint8_t* packed, const int32_t* rows, int64_t count,
                 float* out) {
    const LinearWeight weight{format, n, k, packed};
    for (int64_t i = 0; i < count; ++i) scalar::dequantize_row(weight, rows[i], out + i * k);
}

}  // namespace octavo
