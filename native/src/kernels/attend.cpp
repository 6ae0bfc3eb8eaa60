// Paged attention (docs/numerics.md, "Attention"): read through the block table, one item = some query rows of one
// sequence x one KV head x some spans of 512 keys. Decode rows, prefill tiles and split sequences are the same item.
//
//   rows r = token * group + g of the item; keys in tiles of 128
//   scores  S[r][key]  = chain over the head      lanes = 16 keys   (K is stored key-minor)
//   output  O[r][dim] += chain over the tile's keys   lanes = 16 dims   (V is stored dim-minor)
//
// Few rows read the cache where it lies; many rows unpack a tile once to f32 and reuse it. Both are the same chains.
// A cache of int8 codes has sums of integers instead (attend_codes.h).
#include <utility>

#include "attend_codes.h"
#include "attend_item.h"
#include "attend_softmax.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

constexpr int kFewRows = 8;  // up to here the cache is read in place

// One head's K in a block, and its V.
OCTAVO_INLINE std::int64_t head_bytes(const KvLayer& kv) { return kv.dim * kv.block_size * kv_number_bytes(kv.dtype); }

// From K of a block, this head, to the scales of its slots.
OCTAVO_INLINE std::int64_t scales_behind(const KvLayer& kv, std::int32_t kv_head) {
    return 2 * kv.v_bytes + (4 * kv.block_size - head_bytes(kv)) * kv_head;
}

// Where the 16 keys of group g begin, for reading in place.
OCTAVO_INLINE const std::uint8_t* key_group(const Item& c, int g) {
    const std::int64_t size = c.op->kv.block_size;
    return c.blocks[g * 16 / size] + g * 16 % size * 4;
}

// Where V of those keys begins.
OCTAVO_INLINE const std::uint8_t* value_group(const Item& c, int g) {
    const KvLayer& kv = c.op->kv;
    const std::int64_t size = kv.block_size, key_bytes = c.size.dim * (kv.dtype == Dtype::bf16 ? 2 : 4);
    return c.blocks[g * 16 / size] + kv.v_bytes + g * 16 % size * key_bytes;
}

template <bool kBf16, bool kDirect, int MR, int NV>
OCTAVO_INLINE void score_block(const Item& c, std::int32_t r0, int g) {
    constexpr Source kSource = source_of<kBf16, kDirect>();
    const int dim = static_cast<int>(c.size.dim);
    const std::uint8_t* base[NV];
    OCTAVO_UNROLL
    for (int v = 0; v < NV; v++)
        base[v] = kDirect ? key_group(c, g + v) : reinterpret_cast<const std::uint8_t*>(c.mem.k + (g + v) * dim * 16);
    Block<MR, NV> b;
    OCTAVO_UNROLL
    for (int r = 0; r < MR; r++) OCTAVO_UNROLL for (int v = 0; v < NV; v++) b.acc[r][v] = zero_f32();
    const std::int64_t stride = kDirect ? c.op->kv.block_size * 4 : 64;
    const void* x = c.mem.q + r0 * dim / (keeps_pairs<kBf16, kDirect>() ? 2 : 1);
    // V of these keys is wanted next: as many lines as the chain has steps.
    const std::uint8_t* ahead[NV];
    OCTAVO_UNROLL
    for (int v = 0; v < NV; v++) ahead[v] = kDirect ? value_group(c, g + v) : nullptr;
    chain<kSource, kDirect, MR, NV, MR, 1>(b, x, base, stride, dim, ahead);
    const f32x16 scale = set1(c.op->scale);
    OCTAVO_UNROLL
    for (int r = 0; r < MR; r++)
        OCTAVO_UNROLL for (int v = 0; v < NV; v++)
            store(c.mem.s + (r0 + r) * kTileKeys + (g + v) * 16, mul(b.acc[r][v], scale));
}

// Brings [p, p + n) nearer while something else is computed.
OCTAVO_INLINE void prefetch_range(const std::uint8_t* p, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += 64) prefetch(p + i);
}

template <bool kBf16, bool kDirect>
void scores(const Item& c) {
    const int groups = (c.keys + 15) / 16;
    // A panel of keys stays in the first-level cache while all row tiles use it.
    constexpr Source kSource = source_of<kBf16, kDirect>();
    constexpr int kStep = tile_vectors(kSource, 1), kTile = tile_rows(kSource);
    for (int g0 = c.from / 16; g0 < groups; g0 += kStep) {
        const int end = g0 + kStep < groups ? g0 + kStep : groups;
        for (std::int32_t r0 = 0; r0 < c.rows; r0 += kTile) {
            with_rows<kTile>(c.rows - r0, [&]<int MR>() {
                constexpr int NV = tile_vectors(kSource, MR);
                int g = g0;
                for (; g + NV <= end; g += NV) score_block<kBf16, kDirect, MR, NV>(c, r0, g);
                for (; g < end; g++) score_block<kBf16, kDirect, MR, 1>(c, r0, g);
            });
        }
    }
}

template <bool kBf16, bool kDirect, int MR, int NV>
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
        const int size = c.op->kv.block_size;
        int key = first_value<kBf16>(c);
        if constexpr (kBf16) {
            if (c.from & 1) {
                // The pair's other key is before everybody's window: its weight is 0 and its V is taken as 0.
                alignas(64) std::uint8_t head[NV][64];
                OCTAVO_UNROLL
                for (int v = 0; v < NV; v++) {
                    const std::uint8_t* at = c.blocks[key / size] + c.op->kv.v_bytes + key % size * dim * 2;
                    const i32x16 pair = load_i32(at + (g + v) * 64);
                    store_i32(head[v], bit_and(pair, set1(static_cast<std::int32_t>(0xffff0000u))));
                    base[v] = head[v];
                }
                chain<kSource, false, MR, NV, 1, kXR>(b, x + key * kXBytes, base, 64, 2, base);
                key += 2;
            }
        }
        for (int n; key < c.keys; key += n) {
            const int in_block = key % size, left = size - in_block;
            n = c.keys - key < left ? c.keys - key : left;
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++)
                base[v] = c.blocks[key / size] + c.op->kv.v_bytes + in_block * dim * (kBf16 ? 2 : 4) + (g + v) * 64;
            // K of the block that follows in the next tile: each dim group asks for its share of the lines.
            constexpr int kKeys = kBf16 ? 2 : 1;  // a step
            const bool follows = key / size < c.num_next;
            const std::uint8_t* ahead[NV];
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++)
                ahead[v] = follows ? c.next[key / size] + 64 * (((g + v) * size + in_block) / kKeys) : base[v];
            chain<kSource, true, MR, NV, 1, kXR>(b, x + key * kXBytes, base, dim * 4, kBf16 ? n & ~1 : n, ahead);
            if constexpr (kBf16) {
                if (n & 1) {
                    // The pair's other key is nobody's: its weight is 0 and its V is taken as 0.
                    alignas(64) std::uint8_t last[NV][64];
                    OCTAVO_UNROLL
                    for (int v = 0; v < NV; v++) {
                        const i32x16 pair = load_i32(base[v] + (n / 2) * dim * 4);
                        store_i32(last[v], bit_and(pair, set1(int32_t{0xffff})));
                        base[v] = last[v];
                    }
                    chain<kSource, false, MR, NV, 1, kXR>(b, x + (key + n - 1) * kXBytes, base, 64, 2, base);
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
        chain<kSource, false, MR, NV, 1, kXR>(b, x + key * kXBytes, base, 64, end - key, base);
    }
    OCTAVO_UNROLL
    for (int r = 0; r < MR; r++)
        OCTAVO_UNROLL for (int v = 0; v < NV; v++) store(c.mem.o + (r0 + r) * width + (g + v) * 16, b.acc[r][v]);
}

template <bool kBf16, bool kDirect>
void values(const Item& c, bool first_tile) {
    const int groups = static_cast<int>(c.size.width / 16);
    constexpr Source kSource = source_of<kBf16, kDirect>();
    constexpr int kStep = tile_vectors(kSource, 1), kTile = tile_rows(kSource);
    for (int g0 = 0; g0 < groups; g0 += kStep) {
        const int end = g0 + kStep < groups ? g0 + kStep : groups;
        for (std::int32_t r0 = 0; r0 < c.rows; r0 += kTile) {
            with_rows<kTile>(c.rows - r0, [&]<int MR>() {
                constexpr int NV = tile_vectors(kSource, MR);
                int g = g0;
                for (; g + NV <= end; g += NV) value_block<kBf16, kDirect, MR, NV>(c, r0, g, first_tile);
                for (; g < end; g++) value_block<kBf16, kDirect, MR, 1>(c, r0, g, first_tile);
            });
        }
    }
}

// The first key of the span's first tile with a visible key.
OCTAVO_INLINE std::int32_t first_tile(const AttendOp& op, const AttendItem& it, std::int32_t span) {
    const std::int32_t seen = first_seen(op.window, it.position) / kTileKeys * kTileKeys;
    return seen > span * kSpanKeys ? seen : span * kSpanKeys;
}

// The item behind this one: its first tile is what comes next.
void ask_for_item(Item& c, const AttendItem& then) {
    const KvLayer& kv = c.op->kv;
    const std::int32_t first = first_tile(*c.op, then, then.span), end = then.position + then.tokens;
    const std::int64_t head = head_bytes(kv) * then.kv_head;
    c.next_scales = scales_behind(kv, then.kv_head);
    const std::int32_t* table =
        c.op->table + static_cast<std::int64_t>(then.seq) * c.op->max_blocks + first / kv.block_size;
    for (std::int32_t i = 0; i * kv.block_size < end - first && i * kv.block_size < kTileKeys; i++)
        c.next[c.num_next++] = kv.base + table[i] * kv.block_bytes + head;
}

// Points c at the tile from first_key on; `end` is the item's last key of the span, `all` of all its spans.
void set_tile(Item& c, std::int32_t first_key, std::int32_t end, std::int32_t all) {
    const KvLayer& kv = c.op->kv;
    c.first_key = first_key;
    const std::int32_t seen = first_seen(c.op->window, c.it->position);
    c.from = seen > first_key ? seen - first_key : 0;
    c.keys = end - first_key < kTileKeys ? end - first_key : kTileKeys;
    const std::int64_t head = head_bytes(kv) * c.it->kv_head;
    const std::int32_t* table = c.table + first_key / kv.block_size;
    std::int32_t i = 0;
    for (; i * kv.block_size < c.keys; i++) c.blocks[i] = kv.base + table[i] * kv.block_bytes + head;
    c.num_next = 0;
    c.scales = c.next_scales = scales_behind(kv, c.it->kv_head);
    for (; i * kv.block_size < all - first_key && c.num_next * kv.block_size < kTileKeys; i++)
        c.next[c.num_next++] = kv.base + table[i] * kv.block_bytes + head;
    if (c.num_next == 0 && c.then) ask_for_item(c, *c.then);
}

template <bool kBf16>
void run_number_tile(const Item& c, bool first_tile) {
    if (c.direct) {
        scores<kBf16, true>(c);
        if (c.op->cap > 0) cap_scores(c);
        softmax<kBf16, true>(c);
        values<kBf16, true>(c, first_tile);
    } else {
        unpack_keys<kBf16>(c);
        scores<kBf16, false>(c);
        if (c.op->cap > 0) cap_scores(c);
        softmax<kBf16, false>(c);
        unpack_values<kBf16>(c);
        values<kBf16, false>(c, first_tile);
    }
}

void run_code_tile(const Item& c, bool first_tile) {
    Codes at = codes_of(c);
    const auto* copied = reinterpret_cast<const std::uint8_t*>(c.mem.k);
    if (!c.direct) {
        copy_codes(c);
        at = {&copied, kTileKeys, c.size.width, reinterpret_cast<const std::uint8_t*>(c.mem.v) - copied};
    }
    read_scales(c);
    code_scores(c, at);
    if (c.op->cap > 0) cap_scores(c);
    softmax<false, true>(c);
    weights_to_codes(c);
    code_values(c, at, first_tile);
}

void run_tile(const Item& c, bool first_tile) {
    switch (c.op->kv.dtype) {
        case Dtype::f32: run_number_tile<false>(c, first_tile); break;
        case Dtype::i8: run_code_tile(c, first_tile); break;
        default: run_number_tile<true>(c, first_tile);
    }
}

// q as the item's tiles want it.
void pack_queries(const Item& c) {
    switch (c.op->kv.dtype) {
        case Dtype::f32: pack_queries<false, true>(c); break;
        case Dtype::i8: pack_query_codes(c); break;
        default: c.direct ? pack_queries<true, true>(c) : pack_queries<true, false>(c);
    }
}

// One span of the item: leaves its partial in mem.m, mem.l, mem.o.
void run_span(Item& c, std::int32_t span) {
    for (std::int32_t r = 0; r < c.rows + 15; r++) {
        c.mem.m[r] = -__builtin_inff();
        c.mem.l[r] = c.mem.scale[r] = c.mem.sum[r] = 0.0f;
    }
    const std::int32_t end = c.it->position + c.it->tokens;
    const std::int32_t last = (span + 1) * kSpanKeys < end ? (span + 1) * kSpanKeys : end;
    const std::int32_t all = c.it->span_end * kSpanKeys < end ? c.it->span_end * kSpanKeys : end;
    const std::int32_t first = first_tile(*c.op, *c.it, span);
    for (std::int32_t key = first; key < last; key += kTileKeys) {
        set_tile(c, key, last, all);
        run_tile(c, key == first);
    }
}

// total = total folded with the partial (m2, l2, o2) that follows it.
void fold(const Memory& mem, std::int32_t rows, std::int64_t width, const float* m2, const float* l2, const float* o2,
          std::int64_t stride2) {
    for (std::int32_t r = 0; r < rows; r++) {
        const float top = mem.total_m[r] > m2[r] ? mem.total_m[r] : m2[r];
        const f32x16 a = exp2_nonpositive(set1(mem.total_m[r] - top)), b = exp2_nonpositive(set1(m2[r] - top));
        float* o = mem.total + r * width;
        for (std::int64_t d = 0; d < width; d += 16)
            store(o + d, fma(load(o2 + r * stride2 + d), b, mul(load(o + d), a)));
        const f32x16 l = fma(set1(l2[r]), b, mul(set1(mem.total_l[r]), a));
        store_first(mem.total_l + r, l, 1);
        mem.total_m[r] = top;
    }
}

// o / l to the output view. Adding 0 makes a negative zero positive: whether one arises depends on who computed.
void finish(const AttendOp& op, const AttendItem& it, const Memory& mem, const Sizes& z) {
    const std::int32_t rows = it.tokens * op.group;
    const auto dim = static_cast<std::int32_t>(z.dim);
    for (std::int32_t r = 0; r < rows; r++) {
        float* o = mem.total + r * z.width;
        const f32x16 l = set1(mem.total_l[r]);
        float* dense = mem.q + r * z.dim;  // the queries are done with
        for (std::int32_t d = 0; d < dim; d += 16) {
            const int n = dim - d < 16 ? dim - d : 16;
            store_first(dense + d, add(div(load(o + d), l), zero_f32()), n);
        }
        if (op.kv.dtype == Dtype::i8) rotate_back(dense, dim);
    }
    for (std::int32_t t = 0; t < it.tokens; t++) {
        std::uint8_t* row = row_of(op.out, it.token + t);
        const float* y = mem.q + t * op.group * z.dim;
        const std::int32_t head = it.kv_head * op.group;
        if (op.out.dense) {
            store_columns(op.out, row, op.out.offset + head * dim, op.group * dim, y);
        } else {
            for (std::int32_t g = 0; g < op.group; g++)
                store_columns(op.out, row, op.out.offset + (head + g) * op.out.stride, dim, y + g * dim);
        }
    }
}

void run_item(Item& c) {
    const AttendOp& op = *c.op;
    if (c.direct) {
        // Nobody has asked for the first tile yet.
        const std::int32_t end = c.it->position + c.it->tokens;
        set_tile(c, first_tile(op, *c.it, c.it->span), end, end);
        for (std::int32_t i = c.from / op.kv.block_size; i * op.kv.block_size < c.keys; i++)
            prefetch_range(c.blocks[i], head_bytes(op.kv));
    }
    pack_queries(c);
    const std::int64_t width = c.size.width;
    for (std::int32_t span = c.it->span; span < c.it->span_end; span++) {
        run_span(c, span);
        if (c.it->split >= 0) {
            float* out = op.partials + c.it->partial * op.partial_stride;
            for (std::int32_t r = 0; r < c.rows; r++, out += op.partial_stride) {
                memcpy(out, c.mem.o + r * width, 4 * static_cast<std::size_t>(width));
                out[width] = c.mem.m[r];
                out[width + 1] = c.mem.l[r];
            }
        } else if (span == c.it->span) {
            std::swap(c.mem.total_m, c.mem.m);
            std::swap(c.mem.total_l, c.mem.l);
            std::swap(c.mem.total, c.mem.o);
        } else {
            fold(c.mem, c.rows, width, c.mem.m, c.mem.l, c.mem.o, width);
        }
    }
    if (c.it->split < 0) finish(op, *c.it, c.mem, c.size);
}

}  // namespace

void attend_item(const AttendOp& op, const AttendItem& item, const AttendItem* then, std::uint8_t* scratch) {
    Item c;
    c.op = &op;
    c.it = &item;
    c.then = then;
    c.size = sizes_of(op.kv.dim, op.group);
    c.mem = carve(scratch, c.size);
    c.table = op.table + static_cast<std::int64_t>(item.seq) * op.max_blocks;
    c.rows = item.tokens * op.group;
    const bool whole_vectors = op.kv.block_size >= 16 && op.kv.dim % 16 == 0;
    c.direct = whole_vectors && (c.rows <= kFewRows || kPairDot || op.kv.dtype != Dtype::bf16);
    run_item(c);
}

void attend_fold(const AttendOp& op, const AttendSplit& split, std::uint8_t* scratch) {
    const Sizes z = sizes_of(op.kv.dim, op.group);
    const Memory mem = carve(scratch, z);
    const std::int32_t rows = split.whole.tokens * op.group;
    for (std::int32_t part = 0; part < split.parts; part++) {
        const float* in = op.partials + (split.first_partial + part * split.part_rows) * op.partial_stride;
        for (std::int32_t r = 0; r < rows; r++) {
            mem.m[r] = in[r * op.partial_stride + z.width];
            mem.l[r] = in[r * op.partial_stride + z.width + 1];
        }
        if (part > 0) {
            fold(mem, rows, z.width, mem.m, mem.l, in, op.partial_stride);
            continue;
        }
        memcpy(mem.total_m, mem.m, 4 * static_cast<std::size_t>(rows));
        memcpy(mem.total_l, mem.l, 4 * static_cast<std::size_t>(rows));
        for (std::int32_t r = 0; r < rows; r++)
            memcpy(mem.total + r * z.width, in + r * op.partial_stride, 4 * static_cast<std::size_t>(z.width));
    }
    finish(op, split.whole, mem, z);
}

}  // namespace octavo::OCTAVO_ISA_NS
