// Attention over a cache of int8 codes (docs/numerics.md, "An int8 cache"): sums of integers, exact in any order, and
// the scales beside them. For attend.cpp only.
//
// The cache lies as bf16's, in codes: a lane is a pair, 16 keys of K or 16 dims of V are 32 bytes.
#pragma once
#include "attend_item.h"
#include "rotate.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

constexpr float kQueryTop = 4095.0f;    // 127 * 4095 * 4096 dims < 2^31
constexpr float kWeightTop = 32767.0f;  // 127 * 32767 * 128 keys < 2^31

// As attend_chain.h's; a product of integers needs no latency hidden.
#if defined(OCTAVO_ISA_AVX512BF16) || defined(OCTAVO_ISA_AVX512VNNI)
constexpr int kCodeRows = 6;
constexpr int code_vectors(int rows) { return rows <= 3 ? 4 : 2; }
#elif defined(OCTAVO_ISA_SCALAR)
constexpr int kCodeRows = 2;
constexpr int code_vectors(int) { return 1; }
#else
constexpr int kCodeRows = 6;
constexpr int code_vectors(int rows) { return rows <= 2 ? 2 : 1; }
#endif

// What numbers of at most `magnitude` (as bits; infinities and NaNs on top) become codes with: the scale of a code, and
// its inverse.
struct CodeScale {
    float scale, inverse;
};
OCTAVO_INLINE CodeScale code_scale(i32x16 magnitude, float top) {
    const float amax = float_of(static_cast<std::uint32_t>(fold_max_i32(magnitude)));
    if (!(amax < __builtin_inff())) return {__builtin_nanf(""), 0.0f};
    return amax < 0x1p-100f ? CodeScale{0.0f, 0.0f} : CodeScale{amax / top, top / amax};
}
OCTAVO_INLINE i32x16 to_codes(f32x16 x, float inverse) {
    return inverse > 0 ? to_i32(mul(x, set1(inverse))) : zero_i32();
}

// q, rotated as K is, to int16 pairs [row tile][dim / 2][MR], and per row what its integers are multiplied with.
void pack_query_codes(const Item& c) {
    const AttendOp& op = *c.op;
    const auto dim = static_cast<std::int32_t>(c.size.dim);
    float* temp = c.mem.total;  // not yet in use
    alignas(32) std::int16_t codes[16];
    for (std::int32_t r0 = 0; r0 < c.rows; r0 += kCodeRows) {
        const std::int32_t high = c.rows - r0 < kCodeRows ? c.rows - r0 : kCodeRows;
        for (std::int32_t i = 0; i < high; i++) {
            const std::int32_t r = r0 + i, head = c.it->kv_head * op.group + r % op.group;
            const std::uint8_t* row = row_of(op.q, token_of(*c.it, r / op.group));
            load_columns(row, op.q.dtype, op.q.offset + head * op.q.stride, dim, temp);
            if (const float* balance = op.kv.balance)
                for (std::int32_t d = 0; d < dim; d++) temp[d] *= balance[c.it->kv_head * dim + d];
            rotate(temp, dim);
            i32x16 top = zero_i32();
            for (std::int32_t d = 0; d < dim; d += 16)
                top = max(top, as_i32(abs(load_first(temp + d, dim - d < 16 ? dim - d : 16))));
            const CodeScale s = code_scale(top, kQueryTop);
            c.mem.q_scale[r] = s.scale * (op.scale / static_cast<float>(rotation_run(dim)));
            auto* q = reinterpret_cast<std::int16_t*>(c.mem.q) + r0 * dim + 2 * i;
            for (std::int32_t d = 0; d < dim; d += 16) {
                const int n = dim - d < 16 ? dim - d : 16;
                store_i16(codes, to_codes(load_first(temp + d, n), s.inverse));
                for (int j = 0; j < n; j += 2) memcpy(q + (d + j) * high, codes + j, 4);
            }
        }
    }
}

// The tile's scales as f32. Those of keys outside [from, keys) are whatever the blocks hold, or 0; blocks before the
// first key's are not read. The scales of the tile to come are asked for.
void read_scales(const Item& c) {
    const std::int64_t size = c.op->kv.block_size;
    alignas(32) std::uint16_t key[kTileKeys], value[kTileKeys];
    const int groups = (c.keys + 15) / 16, begin = c.from / 8, first = begin / 2;
    memset(key + first * 16, 0, 16);  // the half of a group whose block may be gone
    memset(value + first * 16, 0, 16);
    memset(key + groups * 16 - 8, 0, 16);  // the half of a group that may have no block
    memset(value + groups * 16 - 8, 0, 16);
    for (int i = begin; i * 8 < c.keys; i++) {
        const std::uint8_t* at = c.blocks[i * 8 / size] + c.place.scales_behind + i * 8 % size * 2;
        memcpy(key + i * 8, at, 16);
        memcpy(value + i * 8, at + 2 * size, 16);
    }
    for (int g = first; g < groups; g++) {
        store(c.mem.key_scale + g * 16, load_bf16(key + g * 16));
        store(c.mem.value_scale + g * 16, load_bf16(value + g * 16));
    }
    for (int g = first; g < groups; g++) {
        prefetch(c.ask[g].scales);
        if (size > 16) prefetch(c.ask[g].scales + 2 * size);
    }
}

// Where the tile's codes lie: in the cache, or in a copy as one block of 128 slots whose dims fill whole vectors.
struct Codes {
    const Sixteen* at;  // [key / 16]
    std::int64_t size, width;
};

// The copy, for blocks of 8 and heads that are no multiple of 16. What no key of the item fills is 0.
Codes copy_codes(const Item& c, Sixteen* to) {
    const KvLayer& kv = c.op->kv;
    const std::int64_t dim = c.size.dim, size = kv.block_size, width = c.size.width;
    auto* k = reinterpret_cast<std::uint8_t*>(c.mem.k);
    auto* v = reinterpret_cast<std::uint8_t*>(c.mem.v);
    memset(k, 0, static_cast<std::size_t>(kTileKeys * dim));
    memset(v, 0, static_cast<std::size_t>(kTileKeys * width));
    for (std::int64_t i = c.from / size; i * size < c.keys; i++) {
        const std::uint8_t* block = c.blocks[i];
        for (std::int64_t d = 0; d < dim / 2; d++)
            memcpy(k + (d * kTileKeys + i * size) * 2, block + d * size * 2, static_cast<std::size_t>(2 * size));
        for (std::int64_t s = 0; s < size / 2; s++)
            memcpy(v + (i * size / 2 + s) * width * 2, block + kv.v_bytes + s * dim * 2,
                   static_cast<std::size_t>(2 * dim));
    }
    for (int g = 0; g < kTileKeys / 16; g++) to[g] = {k + g * 32, v + g * 16 * width, nullptr};
    return {to, kTileKeys, width};
}

// V was rotated: so is o.
void rotate_back(float* o, std::int32_t dim) {
    rotate(o, dim);
    const f32x16 share = set1(1.0f / static_cast<float>(rotation_run(dim)));
    for (std::int32_t d = 0; d < dim; d += 16) {
        const int n = dim - d < 16 ? dim - d : 16;
        store_first(o + d, add(mul(load_first(o + d, n), share), zero_f32()), n);
    }
}

template <int MR, int NV>
struct CodeBlock {
    i32x16 acc[MR][NV];
};

// n steps of pairs: x of row r at x[r * x_row], x_step further each time; 16 lanes of pairs at y. Each step asks for
// half a line of each of NV runs that are wanted next (attend_chain.h says why).
template <int MR, int NV>
OCTAVO_INLINE void add_products(CodeBlock<MR, NV>& b, const std::int32_t* x, int x_step, int x_row,
                                const std::uint8_t* const (&base)[NV], std::int64_t stride, std::int64_t n,
                                const std::uint8_t* const (&ahead)[NV]) {
    const std::uint8_t* y[NV];
    OCTAVO_UNROLL
    for (int v = 0; v < NV; v++) y[v] = base[v];
    for (std::int64_t i = 0; i < n; i++, x += x_step) {
        i32x16 p[NV];
        OCTAVO_UNROLL
        for (int v = 0; v < NV; v++) {
            prefetch(ahead[v] + 32 * i);
            p[v] = load_code_pairs(reinterpret_cast<const std::int8_t*>(y[v]));
            y[v] += stride;
        }
        OCTAVO_UNROLL
        for (int r = 0; r < MR; r++) {
            const i32x16 s = set1(x[r * x_row]);
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) b.acc[r][v] = pair_dot(b.acc[r][v], p[v], s);
        }
    }
}

template <int MR, int NV>
OCTAVO_INLINE void clear(CodeBlock<MR, NV>& b) {
    OCTAVO_UNROLL
    for (int r = 0; r < MR; r++) OCTAVO_UNROLL for (int v = 0; v < NV; v++) b.acc[r][v] = zero_i32();
}

template <int MR, int NV>
OCTAVO_INLINE void code_score_block(const Item& c, const Codes& at, std::int32_t r0, int g) {
    const std::uint8_t *base[NV], *ahead[NV];
    OCTAVO_UNROLL
    for (int v = 0; v < NV; v++) {
        base[v] = at.at[g + v].k;
        ahead[v] = at.at[g + v].v;  // wanted next
    }
    CodeBlock<MR, NV> b;
    clear(b);
    const std::int32_t* x = reinterpret_cast<const std::int32_t*>(c.mem.q) + r0 * c.size.dim / 2;
    add_products<MR, NV>(b, x, MR, 1, base, at.size * 2, c.size.dim / 2, ahead);
    OCTAVO_UNROLL
    for (int v = 0; v < NV; v++) {
        const f32x16 scale = load(c.mem.key_scale + (g + v) * 16);
        OCTAVO_UNROLL
        for (int r = 0; r < MR; r++)
            store(c.mem.s + (r0 + r) * kTileKeys + (g + v) * 16,
                  mul(mul(to_f32(b.acc[r][v]), scale), set1(c.mem.q_scale[r0 + r])));
    }
}

// Weights p of the tile (in s; exactly 0 where the row sees nothing) times V's scales to codes, row by row.
void weights_to_codes(const Item& c) {
    const int groups = (c.keys + 15) / 16, begin = c.from / 16;
    for (std::int32_t r = 0; r < c.rows; r++) {
        float* s = c.mem.s + r * kTileKeys;
        i32x16 top = zero_i32();
        for (int g = begin; g < groups; g++) {
            const f32x16 p = load(s + g * 16);
            const f32x16 w = select(eq(p, zero_f32()), zero_f32(), mul(p, load(c.mem.value_scale + g * 16)));
            store(s + g * 16, w);
            top = max(top, as_i32(abs(w)));
        }
        const CodeScale scale = code_scale(top, kWeightTop);
        c.mem.p_scale[r] = scale.scale;
        auto* p = reinterpret_cast<std::int16_t*>(c.mem.p) + r * kTileKeys;
        for (int g = begin; g < groups; g++) store_i16(p + g * 16, to_codes(load(s + g * 16), scale.inverse));
    }
}

template <int MR, int NV>
OCTAVO_INLINE void code_value_block(const Item& c, const Codes& at, std::int32_t r0, int g, bool first_tile) {
    CodeBlock<MR, NV> b;
    clear(b);
    const auto* x = reinterpret_cast<const std::int32_t*>(c.mem.p) + r0 * (kTileKeys / 2);
    // A pair's key that nobody sees weighs 0.
    const std::int64_t end = (c.keys + 1) / 2, size = at.size / 2;
    for (std::int64_t pair = c.from / 2, n; pair < end; pair += n) {
        const std::int64_t group = pair / 8, in_group = pair % 8, left = size - pair % size;
        n = end - pair < left ? end - pair : left;
        // Of K in the tile to come each dim group asks for its share of the block's lines.
        const std::uint8_t* value = at.at[group].v + in_group * at.width * 2;
        const std::uint8_t* key = c.ask[group].k - slot_of(c, static_cast<int>(group)) * 2 + 32 * (pair % size);
        const std::uint8_t *base[NV], *ahead[NV];
        OCTAVO_UNROLL
        for (int v = 0; v < NV; v++) {
            base[v] = value + (g + v) * 32;
            ahead[v] = key + 32 * (g + v) * size;
        }
        add_products<MR, NV>(b, x + pair, 1, kTileKeys / 2, base, at.width * 2, n, ahead);
    }
    OCTAVO_UNROLL
    for (int r = 0; r < MR; r++) {
        const f32x16 a = set1(c.mem.scale[r0 + r]), scale = set1(c.mem.p_scale[r0 + r]);
        OCTAVO_UNROLL
        for (int v = 0; v < NV; v++) {
            float* o = c.mem.o + (r0 + r) * c.size.width + (g + v) * 16;
            store(o, fma(to_f32(b.acc[r][v]), scale, first_tile ? zero_f32() : mul(load(o), a)));
        }
    }
}

// Calls block<MR, NV>(r0, g) over all rows and groups [begin, end).
template <class F>
OCTAVO_INLINE void over_code_blocks(const Item& c, int begin, int end, F&& block) {
    constexpr int kStep = code_vectors(1);
    for (int g0 = begin; g0 < end; g0 += kStep) {
        const int last = g0 + kStep < end ? g0 + kStep : end;
        for (std::int32_t r0 = 0; r0 < c.rows; r0 += kCodeRows) {
            with_rows<kCodeRows>(c.rows - r0, [&]<int MR>() {
                constexpr int NV = code_vectors(MR);
                int g = g0;
                for (; g + NV <= last; g += NV) block.template operator()<MR, NV>(r0, g);
                for (; g < last; g++) block.template operator()<MR, 1>(r0, g);
            });
        }
    }
}

Codes codes_of(const Item& c) { return {c.at, c.op->kv.block_size, c.size.dim}; }

void code_scores(const Item& c, const Codes& at) {
    over_code_blocks(c, c.from / 16, (c.keys + 15) / 16,
                     [&]<int MR, int NV>(std::int32_t r0, int g) { code_score_block<MR, NV>(c, at, r0, g); });
}

void code_values(const Item& c, const Codes& at, bool first_tile) {
    over_code_blocks(c, 0, static_cast<int>(c.size.width / 16), [&]<int MR, int NV>(std::int32_t r0, int g) {
        code_value_block<MR, NV>(c, at, r0, g, first_tile);
    });
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA_NS
