// Paged attention (docs/numerics.md, "Attention"): read through the block table, one item = some query rows of one
// sequence x one KV head x some spans of 512 keys. Decode rows, prefill tiles and split sequences are the same item.
//
//   rows r = token * group + g of the item; keys in tiles of 128
//   scores  S[r][key]  = chain over the head      lanes = 16 keys   (K is stored key-minor)
//   output  O[r][dim] += chain over the tile's keys   lanes = 16 dims   (V is stored dim-minor)
//
// Few rows read the cache where it lies; many rows unpack a tile once to f32 and reuse it. Both are the same chains.
#include "octavo/math.h"
#include "rows.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

constexpr int kFewRows = 8;  // up to here the cache is read in place

#if defined(OCTAVO_ISA_AVX512BF16)
constexpr bool kPairDot = true;  // a bf16 operand is broadcast as pairs and vdpbf16ps is the step
#else
constexpr bool kPairDot = false;
#endif

// How the moving operand lies in memory and how a step is made of it.
enum class Source { f32, f32_pairs, bf16 };  // f32; f32 unpacked from bf16 (odd element first); bf16 pairs in the cache

template <bool kBf16, bool kDirect>
constexpr Source source_of() {
    return !kBf16 ? Source::f32 : kDirect ? Source::bf16 : Source::f32_pairs;
}

// Whether q and the weights are kept as bf16 pairs: only where the cache is read in place.
template <bool kBf16, bool kDirect>
constexpr bool keeps_pairs() {
    return kBf16 && kDirect && kPairDot;
}

// Rows and vectors (of 16 lanes) of a register tile: what fits the registers without spilling an accumulator, and is
// wide enough to hide the latency of an FMA.
#if defined(OCTAVO_ISA_AVX512BF16) || defined(OCTAVO_ISA_AVX512VNNI)
constexpr int tile_rows(Source) { return 6; }
constexpr int tile_vectors(Source, int rows) { return rows <= 3 ? 4 : 2; }
#else
constexpr int tile_rows(Source s) { return s == Source::bf16 ? 4 : 6; }
constexpr int tile_vectors(Source s, int rows) { return rows <= (s == Source::bf16 ? 2 : 3) ? 2 : 1; }
#endif

template <int MR, int NV>
struct Block {
    f32x16 acc[MR][NV];
};

// One step of the chain for f32 operands: acc[r][v] = fma(x[r], y[v], acc[r][v]).
template <int MR, int NV>
OCTAVO_INLINE void step(Block<MR, NV>& b, const float* x, std::int64_t row_stride, const f32x16 (&y)[NV]) {
    OCTAVO_UNROLL
    for (int r = 0; r < MR; r++) {
        const f32x16 s = set1(x[r * row_stride]);
        OCTAVO_UNROLL
        for (int v = 0; v < NV; v++) b.acc[r][v] = fma(s, y[v], b.acc[r][v]);
    }
}

// n steps (n even unless kSource is f32). The x of step k and row r is x[k * XK + r * XR]; for pair dots x holds bf16
// pairs instead, x[(k / 2) * XK + r * XR]. y[v] of step k lies k * y_stride bytes (bf16: k / 2) behind its base.
template <Source kSource, int MR, int NV, int XK, int XR>
OCTAVO_INLINE void chain(Block<MR, NV>& b, const void* x_any, const std::uint8_t* const (&base)[NV],
                         std::int64_t y_stride, int n) {
    const std::uint8_t* y[NV];
    OCTAVO_UNROLL
    for (int v = 0; v < NV; v++) y[v] = base[v];
    f32x16 t[NV];
    if constexpr (kSource == Source::bf16 && kPairDot) {
        const auto* x = static_cast<const std::int32_t*>(x_any);
        for (int k = 0; k < n; k += 2, x += XK) {
            i32x16 p[NV];
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) {
                p[v] = load_i32(y[v]);
                y[v] += y_stride;
            }
            OCTAVO_UNROLL
            for (int r = 0; r < MR; r++) {
                const i32x16 s = set1(x[r * XR]);
                OCTAVO_UNROLL
                for (int v = 0; v < NV; v++) b.acc[r][v] = pair_fma(b.acc[r][v], p[v], s);
            }
        }
    } else if constexpr (kSource == Source::bf16) {
        const auto* x = static_cast<const float*>(x_any);
        for (int k = 0; k < n; k += 2, x += 2 * XK) {
            i32x16 p[NV];
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) {
                p[v] = load_i32(y[v]);
                y[v] += y_stride;
                t[v] = pair_odd(p[v]);
            }
            step<MR, NV>(b, x + XK, XR, t);
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) t[v] = pair_even(p[v]);
            step<MR, NV>(b, x, XR, t);
        }
    } else if constexpr (kSource == Source::f32_pairs) {
        const auto* x = static_cast<const float*>(x_any);
        for (int k = 0; k < n; k += 2, x += 2 * XK) {
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) t[v] = load(reinterpret_cast<const float*>(y[v] + y_stride));
            step<MR, NV>(b, x + XK, XR, t);
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) {
                t[v] = load(reinterpret_cast<const float*>(y[v]));
                y[v] += 2 * y_stride;
            }
            step<MR, NV>(b, x, XR, t);
        }
    } else {
        const auto* x = static_cast<const float*>(x_any);
        for (int k = 0; k < n; k++, x += XK) {
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) {
                t[v] = load(reinterpret_cast<const float*>(y[v]));
                y[v] += y_stride;
            }
            step<MR, NV>(b, x, XR, t);
        }
    }
}

// A thread's memory for one item, carved out of its scratch.
struct Memory {
    float* q;                    // [row tile][dim][MR], or bf16 pairs [row tile][dim / 2][MR]
    float* s;                    // [row][128] scores, then weights
    std::uint16_t* p;            // [row][128] bf16 weights (pair dots)
    float* k;                    // [key group][dim][16]
    float* v;                    // [dim group][128][16]
    float* o;                    // [row][width] of the span
    float* total;                // [row][width] of the spans so far
    float *m, *l, *scale, *sum;  // [row] of the span
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
    return m;
}

// Everything the steps of one item share.
struct Item {
    const AttendOp* op;
    const AttendItem* it;
    Memory mem;
    Sizes size;
    const std::int32_t* table;
    std::int32_t rows;
    bool direct;
    // The tile at hand.
    std::int32_t first_key, keys;               // keys somebody in the item may see
    const std::uint8_t* blocks[kTileKeys / 8];  // K of its blocks, this head
    std::int32_t num_next;                      // blocks of the tile after it
    const std::uint8_t* next[kTileKeys / 8];
};

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
            const std::uint8_t* row = row_of(op.q, c.it->token + r / op.group);
            load_columns(row, op.q.dtype, op.q.offset + head * op.q.stride, static_cast<std::int32_t>(dim), temp);
            if constexpr (keeps_pairs<kBf16, kDirect>()) {
                auto* q = reinterpret_cast<std::uint16_t*>(c.mem.q) + r0 * dim;
                for (std::int64_t d = 0; d < dim; d++) q[(d / 2 * high + i) * 2 + d % 2] = f32_to_bf16(temp[d]);
            } else {
                float* q = c.mem.q + r0 * dim;
                for (std::int64_t d = 0; d < dim; d++)
                    q[d * high + i] = kBf16 ? bf16_to_f32(f32_to_bf16(temp[d])) : temp[d];
            }
        }
    }
}

// K of the tile to f32 [key group][dim][16]. Keys behind the last are whatever the block holds: their scores are
// unused.
template <bool kBf16>
void unpack_keys(const Item& c) {
    const KvLayer& kv = c.op->kv;
    const std::int64_t dim = c.size.dim, size = kv.block_size, unit = 4;
    const int groups = (c.keys + 15) / 16;
    alignas(64) std::uint8_t whole[64];
    for (int g = 0; g < groups; g++) {
        float* out = c.mem.k + g * dim * 16;
        const std::uint8_t* lo = c.blocks[g * 16 / size] + g * 16 % size * unit;
        const std::uint8_t* hi = lo + 32;
        if (size < 16) hi = g * 2 + 1 < (c.keys + 7) / 8 ? c.blocks[g * 2 + 1] : lo;
        for (std::int64_t d = 0; d < dim; d += kBf16 ? 2 : 1, lo += size * unit, hi += size * unit) {
            memcpy(whole, lo, 32);
            memcpy(whole + 32, hi, 32);
            if constexpr (kBf16) {
                const i32x16 p = load_i32(whole);
                store(out + d * 16, pair_even(p));
                store(out + (d + 1) * 16, pair_odd(p));
            } else {
                store(out + d * 16, load(reinterpret_cast<const float*>(whole)));
            }
        }
    }
}

// V of the tile to f32 [dim group][128][16]; keys behind the last become 0 (stale memory never meets arithmetic).
template <bool kBf16>
void unpack_values(const Item& c) {
    const KvLayer& kv = c.op->kv;
    const std::int64_t dim = c.size.dim, size = kv.block_size;
    const int groups = static_cast<int>(c.size.width / 16);
    for (int key = 0; key < c.keys; key += kBf16 ? 2 : 1) {
        const std::uint8_t* row = c.blocks[key / size] + kv.v_bytes + key % size * dim * (kBf16 ? 2 : 4);
        for (int g = 0; g < groups; g++) {
            const int n = dim - g * 16 < 16 ? static_cast<int>(dim - g * 16) : 16;
            float* out = c.mem.v + (g * kTileKeys + key) * 16;
            if constexpr (kBf16) {
                const i32x16 p = load_i32_first(row + g * 64, n);
                store(out, pair_even(p));
                store(out + 16, key + 1 < c.keys ? pair_odd(p) : zero_f32());
            } else {
                store(out, load_first(reinterpret_cast<const float*>(row) + g * 16, n));
            }
        }
    }
}

// Where the 16 keys of group g begin, for reading in place.
OCTAVO_INLINE const std::uint8_t* key_group(const Item& c, int g) {
    const std::int64_t size = c.op->kv.block_size;
    return c.blocks[g * 16 / size] + g * 16 % size * 4;
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
    chain<kSource, MR, NV, MR, 1>(b, x, base, stride, dim);
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
    for (int g0 = 0; g0 < groups; g0 += kStep) {
        const int end = g0 + kStep < groups ? g0 + kStep : groups;
        if constexpr (kDirect) {
            // V of these keys is wanted next.
            const std::int64_t size = c.op->kv.block_size, key_bytes = c.size.dim * (kBf16 ? 2 : 4);
            for (int g = g0; g < end; g++)
                prefetch_range(c.blocks[g * 16 / size] + c.op->kv.v_bytes + g * 16 % size * key_bytes, 16 * key_bytes);
        }
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

// Scores to weights: the running maximum and the 16-lane sum of the weights; `rescale` does what follows from them.
template <bool kBf16, bool kDirect>
void softmax_row(const Item& c, std::int32_t r, int visible) {
    float* s = c.mem.s + r * kTileKeys;
    const int whole = visible / 16, tail = visible % 16, groups = (c.keys + 15) / 16;
    const mask16 seen = mask_first(tail);
    f32x16 sum = zero_f32();
    auto put = [&](int g, f32x16 e) {
        if constexpr (keeps_pairs<kBf16, kDirect>()) {
            store_bf16(c.mem.p + r * kTileKeys + g * 16, e);
        } else {
            store(s + g * 16, kBf16 ? round_bf16_number(e) : e);
        }
    };
    const float old = c.mem.m[r];
    float m = old;
    if (visible > 0) {
        f32x16 top = set1(old);
        for (int g = 0; g < whole; g++) top = max(load(s + g * 16), top);
        if (tail) top = max(select(seen, load(s + whole * 16), top), top);
        m = fold_max(top);
    }
    const f32x16 mv = set1(m);
    for (int g = 0; g < whole; g++) {
        const f32x16 e = exp2_nonpositive(sub(load(s + g * 16), mv));
        sum = add(sum, e);
        put(g, e);
    }
    int g = whole;
    if (tail) {
        const f32x16 e = select(seen, exp2_nonpositive(sub(load(s + g * 16), mv)), zero_f32());
        sum = add(sum, e);
        put(g++, e);
    }
    for (; g < groups; g++) put(g, zero_f32());
    c.mem.m[r] = m;
    c.mem.scale[r] = visible > 0 ? old - m : 0.0f;
    c.mem.sum[r] = fold_add(sum);
}

template <bool kBf16, bool kDirect>
void softmax(const Item& c) {
    const std::int32_t group = c.op->group;
    for (std::int32_t r = 0; r < c.rows; r++) {
        const std::int32_t visible = c.it->position + r / group + 1 - c.first_key;
        softmax_row<kBf16, kDirect>(c, r, visible < 0 ? 0 : visible < c.keys ? visible : c.keys);
    }
    // The factors of all rows at once. In a span's first tile l and o are 0, and a factor of them changes nothing.
    for (std::int32_t r = 0; r < c.rows; r += 16) {
        const f32x16 a = exp2_nonpositive(load(c.mem.scale + r));
        store(c.mem.scale + r, a);
        store(c.mem.l + r, add(mul(load(c.mem.l + r), a), load(c.mem.sum + r)));
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
        for (int key = 0, at = 0; key < c.keys; key += size, at++) {
            const int n = c.keys - key < size ? c.keys - key : size;
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) base[v] = c.blocks[at] + c.op->kv.v_bytes + (g + v) * 64;
            chain<kSource, MR, NV, 1, kXR>(b, x + key * kXBytes, base, dim * 4, kBf16 ? n & ~1 : n);
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
                    chain<kSource, MR, NV, 1, kXR>(b, x + (key + n - 1) * kXBytes, base, 64, 2);
                }
            }
        }
    } else {
        OCTAVO_UNROLL
        for (int v = 0; v < NV; v++)
            base[v] = reinterpret_cast<const std::uint8_t*>(c.mem.v + (g + v) * kTileKeys * 16);
        chain<kSource, MR, NV, 1, kXR>(b, x, base, 64, kBf16 ? (c.keys + 1) & ~1 : c.keys);
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
        if constexpr (kDirect) {
            // K of the next tile, a share of its blocks with every dim group.
            const std::int64_t block_bytes = c.size.dim * c.op->kv.block_size * (kBf16 ? 2 : 4);
            for (int i = g0 * c.num_next / groups; i < end * c.num_next / groups; i++)
                prefetch_range(c.next[i], block_bytes);
        }
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

// Points c at the tile from first_key on; `end` is the item's last key of the span, `all` of all its spans.
void set_tile(Item& c, std::int32_t first_key, std::int32_t end, std::int32_t all) {
    const KvLayer& kv = c.op->kv;
    c.first_key = first_key;
    c.keys = end - first_key < kTileKeys ? end - first_key : kTileKeys;
    const std::int64_t head =
        static_cast<std::int64_t>(c.it->kv_head) * kv.dim * kv.block_size * (kv.dtype == Dtype::f32 ? 4 : 2);
    const std::int32_t* table = c.table + first_key / kv.block_size;
    std::int32_t i = 0;
    for (; i * kv.block_size < c.keys; i++) c.blocks[i] = kv.base + table[i] * kv.block_bytes + head;
    c.num_next = 0;
    for (; i * kv.block_size < all - first_key && c.num_next * kv.block_size < kTileKeys; i++)
        c.next[c.num_next++] = kv.base + table[i] * kv.block_bytes + head;
}

template <bool kBf16>
void run_tile(const Item& c, bool first_tile) {
    if (c.direct) {
        scores<kBf16, true>(c);
        softmax<kBf16, true>(c);
        values<kBf16, true>(c, first_tile);
    } else {
        unpack_keys<kBf16>(c);
        scores<kBf16, false>(c);
        softmax<kBf16, false>(c);
        unpack_values<kBf16>(c);
        values<kBf16, false>(c, first_tile);
    }
}

// One span of the item: leaves its partial in mem.m, mem.l, mem.o.
template <bool kBf16>
void run_span(Item& c, std::int32_t span) {
    for (std::int32_t r = 0; r < c.rows + 15; r++) {
        c.mem.m[r] = -__builtin_inff();
        c.mem.l[r] = c.mem.scale[r] = c.mem.sum[r] = 0.0f;
    }
    const std::int32_t end = c.it->position + c.it->tokens;
    const std::int32_t last = (span + 1) * kSpanKeys < end ? (span + 1) * kSpanKeys : end;
    const std::int32_t all = c.it->span_end * kSpanKeys < end ? c.it->span_end * kSpanKeys : end;
    for (std::int32_t key = span * kSpanKeys; key < last; key += kTileKeys) {
        set_tile(c, key, last, all);
        run_tile<kBf16>(c, key == span * kSpanKeys);
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

template <bool kBf16>
void run_item(Item& c) {
    const AttendOp& op = *c.op;
    if (c.direct) {
        // Nobody has asked for the first tile yet.
        const std::int32_t end = c.it->position + c.it->tokens, first = c.it->span * kSpanKeys;
        set_tile(c, first, end, end);
        for (std::int32_t i = 0; i * op.kv.block_size < c.keys; i++)
            prefetch_range(c.blocks[i], c.size.dim * op.kv.block_size * (kBf16 ? 2 : 4));
        pack_queries<kBf16, true>(c);
    } else {
        pack_queries<kBf16, false>(c);
    }
    const std::int64_t width = c.size.width;
    for (std::int32_t span = c.it->span; span < c.it->span_end; span++) {
        run_span<kBf16>(c, span);
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

void attend_item(const AttendOp& op, const AttendItem& item, std::uint8_t* scratch) {
    Item c;
    c.op = &op;
    c.it = &item;
    c.size = sizes_of(op.kv.dim, op.group);
    c.mem = carve(scratch, c.size);
    c.table = op.table + static_cast<std::int64_t>(item.seq) * op.max_blocks;
    c.rows = item.tokens * op.group;
    const bool whole_vectors = op.kv.block_size >= 16 && op.kv.dim % 16 == 0;
    c.direct = whole_vectors && (c.rows <= kFewRows || kPairDot || op.kv.dtype == Dtype::f32);
    if (op.kv.dtype == Dtype::f32) {
        run_item<false>(c);
    } else {
        run_item<true>(c);
    }
}

void attend_fold(const AttendOp& op, const AttendSplit& split, std::uint8_t* scratch) {
    const Sizes z = sizes_of(op.kv.dim, op.group);
    const Memory mem = carve(scratch, z);
    const std::int32_t rows = split.whole.tokens * op.group;
    for (std::int32_t part = 0; part < split.parts; part++) {
        const float* in =
            op.partials + (split.first_partial + static_cast<std::int64_t>(part) * rows) * op.partial_stride;
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
