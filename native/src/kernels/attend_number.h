// Scores and values of a cache of numbers: the chains of docs/numerics.md over row tiles. For attend.cpp only.
#pragma once
#include "attend_item.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

template <bool kBf16, bool kDirect, bool kAhead, int MR, int NV>
OCTAVO_INLINE void score_block(const Item& c, std::int32_t r0, int g) {
    constexpr Source kSource = source_of<kBf16, kDirect>();
    const int dim = static_cast<int>(c.size.dim);
    const std::uint8_t* base[NV];
    OCTAVO_UNROLL
    for (int v = 0; v < NV; v++)
        base[v] = kDirect ? c.at[g + v].k : reinterpret_cast<const std::uint8_t*>(c.mem.k + (g + v) * dim * 16);
    Block<MR, NV> b;
    OCTAVO_UNROLL
    for (int r = 0; r < MR; r++) OCTAVO_UNROLL for (int v = 0; v < NV; v++) b.acc[r][v] = zero_f32();
    const std::int64_t stride = kDirect ? c.op->kv.block_size * 4 : 64;
    const void* x = c.mem.q + r0 * dim / (keeps_pairs<kBf16, kDirect>() ? 2 : 1);
    const std::uint8_t* ahead[NV];  // as many lines as the chain has steps
    OCTAVO_UNROLL
    for (int v = 0; v < NV; v++) ahead[v] = !kDirect ? base[v] : kAskAlike ? c.ask[g + v].k : c.at[g + v].v;
    chain<kSource, kAhead, MR, NV, MR, 1>(b, x, base, stride, dim, ahead, kAskAlike ? stride : 64);
    const f32x16 scale = set1(c.op->scale);
    OCTAVO_UNROLL
    for (int r = 0; r < MR; r++)
        OCTAVO_UNROLL for (int v = 0; v < NV; v++)
            store(c.mem.s + (r0 + r) * kTileKeys + (g + v) * 16, mul(b.acc[r][v], scale));
}

template <bool kBf16, bool kDirect>
void scores(const Item& c, Rows rows) {
    const int groups = (c.keys + 15) / 16;
    // A panel of keys stays in the first-level cache while all row tiles use it.
    constexpr Source kSource = source_of<kBf16, kDirect>();
    constexpr int kStep = tile_vectors(kSource, 1), kTile = tile_rows(kSource);
    for (int g0 = c.from / 16; g0 < groups; g0 += kStep) {
        const int end = g0 + kStep < groups ? g0 + kStep : groups;
        over_row_tiles<kTile, kDirect>(rows, [&]<int MR, bool kAhead>(std::int32_t r0) {
            constexpr int NV = tile_vectors(kSource, MR);
            // Keys that none of these rows sees, at the end of a prompt's tile, need no scores.
            const int behind = c.it->tokens == 1 ? 0 : (r0 + MR - 1) / c.op->group;
            const int seen = c.it->position + behind + 1 - c.first_key;
            const int stop = seen < end * 16 ? (seen + 15) / 16 : end;
            int g = g0;
            for (; g + NV <= stop; g += NV) score_block<kBf16, kDirect, kAhead, MR, NV>(c, r0, g);
            for (; g < stop; g++) score_block<kBf16, kDirect, kAhead, MR, 1>(c, r0, g);
        });
    }
}

template <bool kBf16, bool kDirect, bool kAhead, int MR, int NV>
OCTAVO_INLINE void value_block(const Item& c, std::int32_t r0, int g, bool first_tile) {
    constexpr bool kPairs = keeps_pairs<kBf16, kDirect>();
    constexpr Source kSource = source_of<kBf16, kDirect>();
    const std::int64_t dim = c.size.dim, width = c.size.width;
    Block<MR, NV> b;
    OCTAVO_UNROLL
    for (int r = 0; r < MR; r++) {
        const f32x16 a = set1(c.mem.scale[r0 + r]);
        OCTAVO_UNROLL
        for (int v = 0; v < NV; v++)
            b.acc[r][v] = first_tile ? zero_f32() : mul(load(c.mem.o + (r0 + r) * width + (g + v) * 16), a);
    }
    const std::uint8_t* x = kPairs ? reinterpret_cast<const std::uint8_t*>(c.mem.p + r0 * kTileKeys)
                                   : reinterpret_cast<const std::uint8_t*>(c.mem.s + r0 * kTileKeys);
    constexpr int kXR = kPairs ? kTileKeys / 2 : kTileKeys;
    constexpr int kXBytes = kPairs ? 2 : 4;  // of one key
    const std::uint8_t* base[NV];
    if constexpr (kDirect) {
        constexpr int kKeys = kBf16 ? 2 : 1;  // a step
        const std::int64_t stride = dim * 4, key_bytes = stride / kKeys;
        int key = first_value<kBf16>(c);
        if constexpr (kBf16) {
            if (c.from & 1) {
                // The pair's other key is before everybody's window: its weight is 0 and its V is taken as 0.
                alignas(64) std::uint8_t head[NV][64];
                OCTAVO_UNROLL
                for (int v = 0; v < NV; v++) {
                    const i32x16 pair = load_i32(c.at[key / 16].v + key % 16 * key_bytes + (g + v) * 64);
                    store_i32(head[v], bit_and(pair, set1(static_cast<std::int32_t>(0xffff0000u))));
                    base[v] = head[v];
                }
                chain<kSource, false, MR, NV, 1, kXR>(b, x + key * kXBytes, base, 64, 2, base, 0);
                key += 2;
            }
        }
        for (int n; key < c.keys; key += n) {
            const int group = key / 16, in_group = key % 16, left = 16 - in_group;
            n = c.keys - key < left ? c.keys - key : left;
            // Of K in the tile to come each dim group asks for its share of the block's lines.
            const std::int64_t slot = slot_of(c, group);
            const std::uint8_t* ahead[NV];
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) {
                const std::int64_t in = in_group * key_bytes + (g + v) * 64;
                base[v] = c.at[group].v + in;
                ahead[v] = kAskAlike ? c.ask[group].v + in
                                     : c.ask[group].k - slot * 4 +
                                           64 * (((g + v) * c.op->kv.block_size + slot + in_group) / kKeys);
            }
            const std::int64_t ahead_stride = kAskAlike ? stride : 64;
            chain<kSource, kAhead, MR, NV, 1, kXR>(b, x + key * kXBytes, base, stride, kBf16 ? n & ~1 : n, ahead,
                                                   ahead_stride);
            if constexpr (kBf16) {
                if (n & 1) {
                    // The pair's other key is nobody's: its weight is 0 and its V is taken as 0.
                    alignas(64) std::uint8_t last[NV][64];
                    OCTAVO_UNROLL
                    for (int v = 0; v < NV; v++) {
                        const i32x16 pair = load_i32(base[v] + (n / 2) * stride);
                        store_i32(last[v], bit_and(pair, set1(int32_t{0xffff})));
                        base[v] = last[v];
                    }
                    chain<kSource, false, MR, NV, 1, kXR>(b, x + (key + n - 1) * kXBytes, base, 64, 2, base, 0);
                }
            }
        }
    } else {
        OCTAVO_UNROLL
        for (int v = 0; v < NV; v++)
            base[v] = reinterpret_cast<const std::uint8_t*>(c.mem.v + (g + v) * kTileKeys * 16);
        const int key = first_value<kBf16>(c), end = kBf16 ? (c.keys + 1) & ~1 : c.keys;
        OCTAVO_UNROLL
        for (int v = 0; v < NV; v++) base[v] += key * 64;
        chain<kSource, false, MR, NV, 1, kXR>(b, x + key * kXBytes, base, 64, end - key, base, 0);
    }
    OCTAVO_UNROLL
    for (int r = 0; r < MR; r++)
        OCTAVO_UNROLL for (int v = 0; v < NV; v++) store(c.mem.o + (r0 + r) * width + (g + v) * 16, b.acc[r][v]);
}

template <bool kBf16, bool kDirect>
void values(const Item& c, Rows rows, bool first_tile) {
    const int groups = static_cast<int>(c.size.width / 16);
    constexpr Source kSource = source_of<kBf16, kDirect>();
    constexpr int kStep = tile_vectors(kSource, 1), kTile = tile_rows(kSource);
    for (int g0 = 0; g0 < groups; g0 += kStep) {
        const int end = g0 + kStep < groups ? g0 + kStep : groups;
        over_row_tiles<kTile, kDirect>(rows, [&]<int MR, bool kAhead>(std::int32_t r0) {
            constexpr int NV = tile_vectors(kSource, MR);
            int g = g0;
            for (; g + NV <= end; g += NV) value_block<kBf16, kDirect, kAhead, MR, NV>(c, r0, g, first_tile);
            for (; g < end; g++) value_block<kBf16, kDirect, kAhead, MR, 1>(c, r0, g, first_tile);
        });
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA_NS
