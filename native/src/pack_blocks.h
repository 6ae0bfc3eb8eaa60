// The block formats of files, one group of 32 at a time. Part of pack.cpp. The layouts are GGML's, and z4 and s8 are
// ours; kernels/reference/blocks.py describes them all.
#pragma once

#include <cstdint>
#include <cstring>

#include "octavo/pack.h"
#include "pack_convert.h"

namespace octavo::blocks {

// A group as its source has it. Which scales mean anything depends on source_info().scale (linear.h says how).
struct Group {
    uint32_t quads[8];        // code + source_info().offset, or index, of input 4 q + b in byte b of quad q
    uint16_t scale, minimum;  // f16; of the super group where there is one
    float wide;
    // super: scale, minimum; super16: one int8 a half; super16_min: two nibbles a half; super32 (an int8), power and
    // half_zero: [0]
    uint8_t small[2];
};

inline uint16_t half_at(const uint8_t* p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

inline uint32_t word_at(const uint8_t* p) {
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

inline constexpr uint32_t kNibbles = 0x0f0f0f0f, kPairs = 0x03030303, kBits = 0x01010101;

// Elements 0..15 low, 16..31 high.
inline void nibbles(const uint8_t* bytes, Group& out) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
        const uint32_t word = word_at(bytes + 4 * q);
        out.quads[q] = word & kNibbles;
        out.quads[q + 4] = word >> 4 & kNibbles;
    }
}

// The fifth bits of 32 elements, in order.
inline void add_fifth(uint32_t high, Group& out) {
    // Times 2^0 + 2^7 + 2^14 + 2^21, bit i of four lands on bit 8 i, and nothing else lands on such a bit.
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) out.quads[q] |= ((high >> 4 * q & 15) * 0x00204081 & kBits) << 4;
}

// Indices become the table's codes.
inline void look_up(Table table, Group& group) {
    uint8_t bytes[kGroup];
    memcpy(bytes, group.quads, kGroup);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(table_info(table).codes[byte]);
    memcpy(group.quads, bytes, kGroup);
}

// 2^(e - 128); the two smallest are denormal.
inline float power_of(uint8_t e) {
    return convert::from_bits(e >= 2 ? uint32_t{e - 1u} << 23 : uint32_t{0x200000u} << e);
}

// The 6-bit scale and minimum of group g among 12 bytes.
inline void six_bit_pair(const uint8_t* s, size_t g, uint8_t* out) {
    if (g < 4) {
        out[0] = s[g] & 63;
        out[1] = s[g + 4] & 63;
    } else {
        out[0] = static_cast<uint8_t>((s[g + 4] & 15) | s[g - 4] >> 6 << 4);
        out[1] = static_cast<uint8_t>(s[g + 4] >> 4 | s[g] >> 6 << 4);
    }
}

// Blocks of 256, g the group inside.

inline void read_q2_k(const uint8_t* b, size_t g, Group& out) {
    const uint8_t* low = b + 16 + 32 * (g / 4);
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) out.quads[q] = word_at(low + 4 * q) >> 2 * (g % 4) & kPairs;
    out.small[0] = b[2 * g];
    out.small[1] = b[2 * g + 1];
    out.scale = half_at(b + 80);
    out.minimum = half_at(b + 82);
}

inline void read_q3_k(const uint8_t* b, size_t g, Group& out) {
    const uint8_t* low = b + 32 + 32 * (g / 4);
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) {
        out.quads[q] = (word_at(low + 4 * q) >> 2 * (g % 4) & kPairs) | (word_at(b + 4 * q) >> g & kBits) << 2;
    }
    const uint8_t* s = b + 96;
    for (size_t half = 0; half < 2; ++half) {
        const size_t i = 2 * g + half;
        const int four = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
        const int two = s[8 + i % 4] >> 2 * (i / 4) & 3;
        out.small[half] = static_cast<uint8_t>((four | two << 4) - 32);
    }
    out.scale = half_at(b + 108);
}

inline void read_q4_k(const uint8_t* b, size_t g, Group& out) {
    const uint8_t* pairs = b + 16 + 32 * (g / 2);
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) out.quads[q] = word_at(pairs + 4 * q) >> 4 * (g % 2) & kNibbles;
    six_bit_pair(b + 4, g, out.small);
    out.scale = half_at(b);
    out.minimum = half_at(b + 2);
}

inline void read_q5_k(const uint8_t* b, size_t g, Group& out) {
    const uint8_t* pairs = b + 48 + 32 * (g / 2);
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) {
        out.quads[q] = (word_at(pairs + 4 * q) >> 4 * (g % 2) & kNibbles) | (word_at(b + 16 + 4 * q) >> g & kBits) << 4;
    }
    six_bit_pair(b + 4, g, out.small);
    out.scale = half_at(b);
    out.minimum = half_at(b + 2);
}

inline void read_q6_k(const uint8_t* b, size_t g, Group& out) {
    const uint8_t* low = b + 64 * (g / 4) + 32 * (g % 2);
    const uint8_t* high = b + 128 + 32 * (g / 4);
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) {
        out.quads[q] =
            (word_at(low + 4 * q) >> 4 * (g % 4 / 2) & kNibbles) | (word_at(high + 4 * q) >> 2 * (g % 4) & kPairs) << 4;
    }
    out.small[0] = b[192 + 2 * g];
    out.small[1] = b[193 + 2 * g];
    out.scale = half_at(b + 208);
}

inline void read_iq4_xs(const uint8_t* b, size_t g, Group& out) {
    nibbles(b + 8 + 16 * g, out);
    const int low = b[4 + g / 2] >> 4 * (g % 2) & 15;
    const int high = half_at(b + 2) >> 2 * g & 3;
    out.small[0] = static_cast<uint8_t>((low | high << 4) - 32);
    out.scale = half_at(b);
}

// Group g of a row.
template <SourceFormat source>
inline void read_group(const uint8_t* row, size_t g, Group& out) {
    constexpr SourceInfo info = source_info(source);
    constexpr size_t groups = info.elements / kGroup;  // in a block
    const uint8_t* b = row + g / groups * static_cast<size_t>(info.bytes);
    g %= groups;
    if constexpr (source == SourceFormat::q8_0 || source == SourceFormat::q8_0c) memcpy(out.quads, b + 2, kGroup);
    if constexpr (source == SourceFormat::q4_0) nibbles(b + 2, out);
    if constexpr (source == SourceFormat::q4_1) nibbles(b + 4, out), out.minimum = half_at(b + 2);
    if constexpr (source == SourceFormat::q5_0) nibbles(b + 6, out), add_fifth(word_at(b + 2), out);
    if constexpr (source == SourceFormat::q5_1) {
        nibbles(b + 8, out), add_fifth(word_at(b + 4), out);
        out.minimum = half_at(b + 2);
    }
    if constexpr (source == SourceFormat::iq4_nl) nibbles(b + 2, out);
    if constexpr (source == SourceFormat::z4) nibbles(b + 3, out), out.small[0] = b[2];
    if constexpr (source == SourceFormat::s8 || source == SourceFormat::s8c) {
        memcpy(&out.wide, b, 4), memcpy(out.quads, b + 4, kGroup);
    }
    if constexpr (source == SourceFormat::mxfp4) nibbles(b + 1, out), out.small[0] = b[0];
    if constexpr (source == SourceFormat::q2_k) read_q2_k(b, g, out);
    if constexpr (source == SourceFormat::q3_k) read_q3_k(b, g, out);
    if constexpr (source == SourceFormat::q4_k) read_q4_k(b, g, out);
    if constexpr (source == SourceFormat::q5_k) read_q5_k(b, g, out);
    if constexpr (source == SourceFormat::q6_k) read_q6_k(b, g, out);
    if constexpr (source == SourceFormat::iq4_xs) read_iq4_xs(b, g, out);
    // The scale is the block's first number where it is an f16 and the block is no super block.
    if constexpr (info.scale != Scale::wide && info.scale != Scale::power && groups == 1) out.scale = half_at(b);
}

// The one scale of its 32 codes as f32, where it has no minimum: exact.
template <Scale scale>
inline float wide_scale(const Group& group) {
    if constexpr (scale == Scale::wide) return group.wide;
    if constexpr (scale == Scale::power) return power_of(group.small[0]);
    const float d = convert::from_f16(group.scale);
    return scale == Scale::super32 ? d * static_cast<float>(static_cast<int8_t>(group.small[0])) : d;
}
inline constexpr bool has_wide_scale(Scale scale) {
    return scale == Scale::wide || scale == Scale::power || scale == Scale::half || scale == Scale::super32;
}

// Its numbers, once its indices are looked up: each product exact, each sum rounded once.
inline void to_numbers(SourceFormat source, const Group& group, float* out) {
    const SourceInfo& info = source_info(source);
    const double d = static_cast<double>(convert::from_f16(group.scale));
    const double e = static_cast<double>(convert::from_f16(group.minimum));
    for (int i = 0; i < kGroup; ++i) {
        const double code = static_cast<int8_t>(group.quads[i / 4] >> 8 * (i % 4)) - info.offset;
        const uint8_t small = group.small[i / (kGroup / 2)];
        double x = 0;
        switch (info.scale) {
            case Scale::none:
            case Scale::column: break;  // no source's
            case Scale::half: x = d * code; break;
            case Scale::half_min: x = d * code + e; break;
            case Scale::half_zero: x = d * (code - group.small[0]); break;
            case Scale::wide: x = static_cast<double>(group.wide) * code; break;
            case Scale::power: x = static_cast<double>(power_of(group.small[0])) * code; break;
            case Scale::super32: x = d * static_cast<int8_t>(group.small[0]) * code; break;
            case Scale::super: x = d * group.small[0] * code - e * group.small[1]; break;
            case Scale::super16: x = d * static_cast<int8_t>(small) * code; break;
            case Scale::super16_min: x = d * (small & 15) * code - e * (small >> 4); break;
        }
        out[i] = static_cast<float>(x);
    }
}

}  // namespace octavo::blocks
