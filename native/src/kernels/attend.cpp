// Paged attention (docs/numerics.md, "Attention"): read through the block table, one item = some query rows of one
// sequence x one KV head x some spans of 512 keys. Decode rows, prefill tiles and split sequences are the same item.
//
//   rows r = token * group + g of the item; keys in tiles of 128
//   scores  S[r][key]  = chain over the head      lanes = 16 keys   (K is stored key-minor)
//   output  O[r][dim] += chain over the tile's keys   lanes = 16 dims   (V is stored dim-minor)
//
// Few rows read the cache where it lies; many rows unpack a tile once to f32 and reuse it. Both are the same chains.
// A cache of int8 codes has sums of integers instead (attend_codes.h).
#include "attend_codes.h"
#include "attend_number.h"
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

// The first key of the span's first tile with a visible key.
OCTAVO_INLINE std::int32_t first_tile(const AttendOp& op, const AttendItem& it, std::int32_t span) {
    const std::int32_t seen = first_seen(op.window, it.position) / kTileKeys * kTileKeys;
    return seen > span * kSpanKeys ? seen : span * kSpanKeys;
}

// Brings [p, p + n) nearer while something else is computed.
OCTAVO_INLINE void prefetch_range(const std::uint8_t* p, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += 64) prefetch(p + i);
}

// Half the bytes and more arithmetic: codes do better in the other order.
OCTAVO_INLINE bool asks_alike(const AttendOp& op) { return kAskAlike && op.kv.dtype != Dtype::i8; }

// Where an item's keys lie.
Place place_of(const AttendOp& op, const AttendItem& it) {
    const KvLayer& kv = op.kv;
    return {op.table + static_cast<std::int64_t>(it.seq) * op.max_blocks, kv.base + head_bytes(kv) * it.kv_head,
            kv.v_bytes, scales_behind(kv, it.kv_head)};
}

// Where 16 keys from `key` on lie, in the block there.
OCTAVO_INLINE Sixteen sixteen(const Item& c, const Place& p, const std::uint8_t* block, std::int32_t key) {
    const std::int32_t slot = key & (c.op->kv.block_size - 1);
    return {block + slot * c.key_bytes, block + p.v_behind + slot * c.value_bytes, block + p.scales_behind + slot * 2};
}
OCTAVO_INLINE Sixteen sixteen(const Item& c, const Place& p, std::int32_t key) {
    return sixteen(c, p, p.base + p.table[key >> c.block_shift] * c.op->kv.block_bytes, key);
}

// Points c at the tile from first_key on; `end` is behind the item's last key of the span.
void set_tile(Item& c, std::int32_t first_key, std::int32_t end) {
    const KvLayer& kv = c.op->kv;
    c.first_key = first_key;
    const std::int32_t seen = first_seen(c.op->window, c.it->position);
    c.from = seen > first_key ? seen - first_key : 0;
    c.keys = end - first_key < kTileKeys ? end - first_key : kTileKeys;
    const std::int32_t* table = c.place.table + (first_key >> c.block_shift);
    for (std::int32_t i = 0; i << c.block_shift < c.keys; i++) c.blocks[i] = c.place.base + table[i] * kv.block_bytes;
}

// Where the tile's keys lie by 16, and what is asked for meanwhile; `all` is behind the item's last key of all spans.
void set_groups(Item& c, std::int32_t all) {
    // What is `more` groups behind group g: this item's, or of the next one, which begins at its first tile.
    auto later = [&](std::int32_t g, int more) {
        const std::int32_t key = c.first_key + (g + more) * 16, its = c.then_first + (key - (all + 15) / 16 * 16);
        return key < all ? sixteen(c, c.place, key) : its < c.then_end ? sixteen(c, c.then_place, its) : c.at[g];
    };
    const bool alike = asks_alike(*c.op);
    for (std::int32_t g = 0; g * 16 < c.keys; g++) {
        c.at[g] = sixteen(c, c.place, c.blocks[g * 16 >> c.block_shift], g * 16);
        c.ask[g] = later(g, alike ? kAskKeys : kTileKeys / 16);
        if (alike) c.ask[g].v = later(g, kAskValues).v;
    }
}

template <bool kBf16>
void run_number_tile(const Item& c, bool first_tile) {
    const Rows all{0, c.rows};
    if (c.direct) {
        for (Rows rows{0, 0}; rows.last < c.rows;) {
            rows = {rows.last, c.rows - rows.last < kChunkRows ? c.rows : rows.last + kChunkRows};
            scores<kBf16, true>(c, rows);
            if (c.op->cap > 0) cap_scores(c, rows);
            softmax<kBf16, true>(c, rows);
            values<kBf16, true>(c, rows, first_tile);
        }
    } else {
        unpack_keys<kBf16>(c);
        scores<kBf16, false>(c, all);
        if (c.op->cap > 0) cap_scores(c, all);
        softmax<kBf16, false>(c, all);
        unpack_values<kBf16>(c);
        values<kBf16, false>(c, all, first_tile);
    }
}

void run_code_tile(const Item& c, bool first_tile) {
    Sixteen copied[kTileKeys / 16];
    const Codes at = c.direct ? codes_of(c) : copy_codes(c, copied);
    read_scales(c);
    code_scores(c, at);
    if (c.op->cap > 0) cap_scores(c, {0, c.rows});
    softmax<false, true>(c, {0, c.rows});
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
        set_tile(c, key, last);
        if (c.direct || c.op->kv.dtype == Dtype::i8) set_groups(c, all);
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
        set_tile(c, first_tile(op, *c.it, c.it->span), end);
        const std::int32_t soon = asks_alike(op) ? kAskKeys * 16 : kTileKeys;
        for (std::int32_t i = c.from / op.kv.block_size; i * op.kv.block_size < c.keys && i * op.kv.block_size < soon;
             i++)
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
            memcpy(c.mem.total_m, c.mem.m, 4 * static_cast<std::size_t>(c.rows));
            memcpy(c.mem.total_l, c.mem.l, 4 * static_cast<std::size_t>(c.rows));
            memcpy(c.mem.total, c.mem.o, 4 * static_cast<std::size_t>(c.rows * width));
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
    c.size = sizes_of(op.kv.dim, op.group);
    c.mem = carve(scratch, c.size);
    c.block_shift = __builtin_ctz(static_cast<unsigned>(op.kv.block_size));
    c.place = place_of(op, item);
    c.key_bytes = op.kv.dtype == Dtype::i8 ? 2 : 4;  // from key to key of K: pairs of bf16 or codes
    c.value_bytes = op.kv.dim * kv_number_bytes(op.kv.dtype);
    c.then_first = c.then_end = 0;
    if (then) {
        c.then_place = place_of(op, *then);
        c.then_first = first_tile(op, *then, then->span);
        c.then_end = then->position + then->tokens;
    }
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
