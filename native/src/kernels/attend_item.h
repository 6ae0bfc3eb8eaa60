// What the steps of one attention item share: its memory, the tile at hand, and how q, K and V get there. For
// attend.cpp only.
#pragma once
#include "attend_chain.h"
#include "rows.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

// A thread's memory for one item, carved out of its scratch.
struct Memory {
    float* q;                    // [row tile][dim][MR], or pairs of bf16 or int16 [row tile][dim / 2][MR]
    float* s;                    // [row][128] scores, then weights
    std::uint16_t* p;            // [row][128] bf16 weights (pair dots), or int16 ones (codes)
    float* k;                    // [key group][dim][16]
    float* v;                    // [dim group][128][16]
    float* o;                    // [row][width] of the span
    float* total;                // [row][width] of the spans so far
    float *m, *l, *scale, *sum;  // [row] of the span
    // A cache of codes: the tile's scales, and what rows of integers are multiplied with.
    float *key_scale, *value_scale;  // [128]
    float *q_scale, *p_scale;        // [row]
    float *total_m, *total_l;
};

struct Sizes {
    std::int64_t rows, dim, width;  // width: dim rounded up to 16
};

OCTAVO_INLINE Sizes sizes_of(std::int32_t dim, std::int32_t group) {
    const std::int64_t rows = (group > kItemRows ? group : kItemRows) + 16;
    return {rows, dim, (dim + 15) / 16 * 16};
}

Memory carve(std::uint8_t* scratch, const Sizes& z) {
    auto* at = reinterpret_cast<float*>(scratch);
    auto take = [&](std::int64_t n) {
        float* p = at;
        at += (n + 15) / 16 * 16;
        return p;
    };
    Memory m;
    m.q = take(z.rows * z.dim);
    m.s = take(z.rows * kTileKeys);
    m.p = reinterpret_cast<std::uint16_t*>(take(z.rows * kTileKeys / 2));
    m.k = take(kTileKeys * z.dim);
    m.v = take(kTileKeys * z.width);
    m.o = take(z.rows * z.width);
    m.total = take(z.rows * z.width);
    m.m = take(z.rows);
    m.l = take(z.rows);
    m.scale = take(z.rows);
    m.sum = take(z.rows);
    m.total_m = take(z.rows);
    m.total_l = take(z.rows);
    m.key_scale = take(kTileKeys);
    m.value_scale = take(kTileKeys);
    m.q_scale = take(z.rows);
    m.p_scale = take(z.rows);
    return m;
}

// Rows [first, last) of an item.
struct Rows {
    std::int32_t first, last;
};

// Where 16 keys of one head lie in the cache; the scales are of int8.
struct Sixteen {
    const std::uint8_t *k, *v, *scales;
};

// Where the keys of an item lie: what a block's number is looked up in, K of block 0, this head, and from K of a block,
// this head, to its V and to the scales of its slots (K's, then V's).
struct Place {
    const std::int32_t* table;
    const std::uint8_t* base;
    std::int64_t v_behind, scales_behind;
};

// Everything the steps of one item share.
struct Item {
    const AttendOp* op;
    const AttendItem* it;
    Memory mem;
    Sizes size;
    Place place, then_place;              // its own, and that of this thread's next item, probably
    std::int32_t then_first, then_end;    // of the next item: its first key, and behind its last; 0: unknown
    std::int64_t key_bytes, value_bytes;  // of a slot, of this head
    std::int32_t rows;
    int block_shift;  // block_size is 1 << block_shift
    bool direct;
    // The tile at hand.
    std::int32_t first_key, keys;               // behind `keys` nobody in the item sees any
    std::int32_t from;                          // nor before this one (windows)
    const std::uint8_t* blocks[kTileKeys / 8];  // K of its blocks, this head
    Sixteen at[kTileKeys / 16];                 // its keys by 16; blocks of 8 hold half of them
    Sixteen ask[kTileKeys / 16];                // and what is asked for meanwhile
};

// Where in its block the 16 keys of a group begin; a tile begins with a block.
OCTAVO_INLINE int slot_of(const Item& c, int group) { return group * 16 & (c.op->kv.block_size - 1); }

// The first key whose V is read: bf16 comes in pairs.
template <bool kBf16>
OCTAVO_INLINE int first_value(const Item& c) {
    return kBf16 ? c.from & ~1 : c.from;
}

// The token whose query is the i-th of an item.
OCTAVO_INLINE std::int32_t token_of(const AttendItem& it, std::int32_t i) {
    return it.rows ? it.rows[i] : it.token + i;
}

// Calls f with a compile-time row count.
template <int MR, class F>
OCTAVO_INLINE void with_rows(int n, F&& f) {
    if constexpr (MR > 1) {
        if (n < MR) {
            with_rows<MR - 1>(n, f);
            return;
        }
    }
    f.template operator()<MR>();
}

// Calls f<MR, kAhead>(r0) for each row tile. The first of the item asks for what is wanted next, if `kAsk`.
template <int kTile, bool kAsk, class F>
OCTAVO_INLINE void over_row_tiles(Rows rows, F&& f) {
    for (std::int32_t r0 = rows.first; r0 < rows.last; r0 += kTile) {
        with_rows<kTile>(rows.last - r0, [&]<int MR>() {
            if (kAsk && r0 == 0) {
                f.template operator()<MR, kAsk>(r0);
            } else {
                f.template operator()<MR, false>(r0);
            }
        });
    }
}

// Row tiles are tile_rows high but for the last; their rows interleave so that a step's broadcasts are side by side.
template <bool kBf16, bool kDirect>
void pack_queries(const Item& c) {
    constexpr std::int32_t tile = tile_rows(source_of<kBf16, kDirect>());
    const AttendOp& op = *c.op;
    const std::int64_t dim = c.size.dim;
    float* temp = c.mem.total;  // not yet in use
    for (std::int32_t r0 = 0; r0 < c.rows; r0 += tile) {
        const std::int32_t high = c.rows - r0 < tile ? c.rows - r0 : tile;
        for (std::int32_t i = 0; i < high; i++) {
            const std::int32_t r = r0 + i, head = c.it->kv_head * op.group + r % op.group;
            const std::uint8_t* row = row_of(op.q, token_of(*c.it, r / op.group));
            load_columns(row, op.q.dtype, op.q.offset + head * op.q.stride, static_cast<std::int32_t>(dim), temp);
            if constexpr (keeps_pairs<kBf16, kDirect>()) {
                auto* q = reinterpret_cast<std::uint16_t*>(c.mem.q) + r0 * dim + 2 * i;
                alignas(32) std::uint16_t sixteen[16];
                for (std::int64_t d = 0; d < dim; d += 16) {  // read in place: dim is a multiple of 16
                    store_bf16(sixteen, load(temp + d));
                    for (std::int64_t j = 0; j < 16; j += 2) memcpy(q + (d + j) * high, sixteen + j, 4);
                }
            } else {
                float* q = c.mem.q + r0 * dim;
                for (std::int64_t d = 0; d < dim; d++)
                    q[d * high + i] = kBf16 ? bf16_to_f32(f32_to_bf16(temp[d])) : temp[d];
            }
        }
    }
}

// K of the tile to f32 [key group][dim][16]. Keys outside [from, keys) are whatever the block holds: their scores are
// unused. Blocks before the first key's are not read: they may be gone.
template <bool kBf16>
void unpack_keys(const Item& c) {
    const KvLayer& kv = c.op->kv;
    const std::int64_t dim = c.size.dim, size = kv.block_size, unit = 4;
    const int groups = (c.keys + 15) / 16;
    for (int g = c.from / 16; g < groups; g++) {
        float* out = c.mem.k + g * dim * 16;
        const std::uint8_t* lo = c.blocks[g * 16 / size] + g * 16 % size * unit;
        const std::uint8_t* hi = lo + 32;
        if (size < 16) {
            hi = g * 2 + 1 < (c.keys + 7) / 8 ? c.blocks[g * 2 + 1] : lo;
            if (c.from / 8 > g * 2) lo = hi;
        }
        for (std::int64_t d = 0; d < dim; d += kBf16 ? 2 : 1, lo += size * unit, hi += size * unit) {
            const i32x16 p = load_i32_halves(lo, hi);
            if constexpr (kBf16) {
                store(out + d * 16, pair_even(p));
                store(out + (d + 1) * 16, pair_odd(p));
            } else {
                store(out + d * 16, as_f32(p));
            }
        }
    }
}

// V of the tile to f32 [dim group][128][16]; keys nobody sees become 0 (stale memory never meets arithmetic).
template <bool kBf16>
void unpack_values(const Item& c) {
    const KvLayer& kv = c.op->kv;
    const std::int64_t dim = c.size.dim, size = kv.block_size;
    const int groups = static_cast<int>(c.size.width / 16);
    for (int key = first_value<kBf16>(c); key < c.keys; key += kBf16 ? 2 : 1) {
        const std::uint8_t* row = c.blocks[key / size] + kv.v_bytes + key % size * dim * (kBf16 ? 2 : 4);
        for (int g = 0; g < groups; g++) {
            const int n = dim - g * 16 < 16 ? static_cast<int>(dim - g * 16) : 16;
            float* out = c.mem.v + (g * kTileKeys + key) * 16;
            if constexpr (kBf16) {
                const i32x16 p = n == 16 ? load_i32(row + g * 64) : load_i32_first(row + g * 64, n);
                store(out, key >= c.from ? pair_even(p) : zero_f32());
                store(out + 16, key + 1 < c.keys ? pair_odd(p) : zero_f32());
            } else {
                store(out, load_first(reinterpret_cast<const float*>(row) + g * 16, n));
            }
        }
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA_NS
