// Scores to weights, row by row: soft caps, masks at both ends, running maxima and sums. For attend.cpp only.
#pragma once
#include "attend_item.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

// Weights of 16 keys as the values' chain wants them.
template <bool kBf16, bool kDirect>
OCTAVO_INLINE void put_weights(const Item& c, std::int32_t r, int g, f32x16 e) {
    if constexpr (keeps_pairs<kBf16, kDirect>()) {
        store_bf16(c.mem.p + r * kTileKeys + g * 16, e);
    } else {
        store(c.mem.s + r * kTileKeys + g * 16, kBf16 ? round_bf16_number(e) : e);
    }
}

// tanh(s / cap) * cap, in base 2: `scale` held 1 / cap.
void cap_scores(const Item& c, Rows rows) {
    const f32x16 factor = set1(c.op->cap);
    const int groups = (c.keys + 15) / 16;
    for (std::int32_t r = rows.first; r < rows.last; r++)
        for (int g = c.from / 16; g < groups; g++) {
            float* s = c.mem.s + r * kTileKeys + g * 16;
            store(s, mul(tanh_of(load(s)), factor));
        }
}

// What store_bf16_numbers leaves open, where a weight is NaN.
inline void canonical_nans(const Item& c, std::int32_t r) {
    std::uint16_t* p = c.mem.p + r * kTileKeys;
    for (int j = 0; j < kTileKeys; j++)
        if ((p[j] & 0x7fff) > 0x7f80) p[j] = 0x7fc0;
}

// The running maximum of a row that sees the first `visible` keys, and the exponent of its factor.
OCTAVO_INLINE void top_of_row(const Item& c, std::int32_t r, int visible) {
    c.mem.scale[r] = 0.0f;
    if (visible <= 0) return;
    const float* s = c.mem.s + r * kTileKeys;
    const int whole = visible / 16, tail = visible % 16;
    const float old = c.mem.m[r];
    f32x16 top = set1(old);
    for (int g = 0; g < whole; g++) top = max(load(s + g * 16), top);
    if (tail) top = max(select(mask_first(tail), load(s + whole * 16), top), top);
    c.mem.m[r] = fold_max(top);
    c.mem.scale[r] = old - c.mem.m[r];
}

// Scores to weights; the lanes of their sum to `lanes`. A fold here would keep the next row waiting.
template <bool kBf16, bool kDirect>
OCTAVO_INLINE void weights_of_row(const Item& c, std::int32_t r, int visible, float* lanes) {
    const float* s = c.mem.s + r * kTileKeys;
    const int whole = visible / 16, tail = visible % 16, groups = (c.keys + 15) / 16;
    const f32x16 m = set1(c.mem.m[r]);
    f32x16 sum = zero_f32();
    auto weight = [&](int g) { return exp2_nonpositive(sub(load(s + g * 16), m)); };
    auto put = [&](int g, f32x16 e) {
        sum = add(sum, e);
        put_weights<kBf16, kDirect>(c, r, g, e);
    };
    int g = 0;
    if (keeps_pairs<kBf16, kDirect>() && whole == kTileKeys / 16) {
        OCTAVO_UNROLL
        for (; g < kTileKeys / 16; g += 2) {
            const f32x16 e = weight(g), next = weight(g + 1);
            sum = add(add(sum, e), next);
            store_bf16_numbers(c.mem.p + r * kTileKeys + g * 16, e, next);
        }
    } else {
        for (; g < whole; g++) put(g, weight(g));
        if (tail) {
            put(g, select(mask_first(tail), weight(g), zero_f32()));
            g++;
        }
        for (; g < groups; g++) put_weights<kBf16, kDirect>(c, r, g, zero_f32());
    }
    store(lanes, sum);
}

// The same where the row sees keys [first, visible), first > 0 or before it blocks that are gone.
template <bool kBf16, bool kDirect>
void softmax_window_row(const Item& c, std::int32_t r, int first, int visible, float* lanes) {
    float* s = c.mem.s + r * kTileKeys;
    const int groups = (c.keys + 15) / 16, begin = c.from / 16;
    const bool any = first < visible;
    auto seen = [&](int g, f32x16 x, f32x16 other) {
        const int lo = first - g * 16, hi = visible - g * 16;
        const f32x16 late = select(mask_first(lo < 0 ? 0 : lo < 16 ? lo : 16), other, x);
        return select(mask_first(hi < 0 ? 0 : hi < 16 ? hi : 16), late, other);
    };
    const float old = c.mem.m[r];
    float m = old;
    if (any) {
        f32x16 top = set1(old);
        for (int g = begin; g < groups; g++) top = max(seen(g, load(s + g * 16), top), top);
        m = fold_max(top);
    }
    const f32x16 mv = set1(m);
    f32x16 sum = zero_f32();
    for (int g = begin; g < groups; g++) {
        const bool here = any && g * 16 < visible && g * 16 + 16 > first;
        const f32x16 e = here ? seen(g, exp2_nonpositive(sub(load(s + g * 16), mv)), zero_f32()) : zero_f32();
        sum = add(sum, e);
        put_weights<kBf16, kDirect>(c, r, g, e);
    }
    c.mem.m[r] = m;
    c.mem.scale[r] = any ? old - m : 0.0f;
    store(lanes, sum);
}

template <bool kBf16, bool kDirect>
void softmax(const Item& c, Rows rows) {
    const std::int32_t group = c.op->group;
    constexpr std::int32_t kSome = 8;  // rows in turn hide each other's latency
    for (Rows some{rows.first, rows.first}; some.last < rows.last;) {
        some = {some.last, rows.last - some.last < kSome ? rows.last : some.last + kSome};
        int visible[kSome];
        bool plain[kSome];
        alignas(64) float lanes[kSome][16];
        for (std::int32_t r = some.first; r < some.last; r++) {
            const std::int32_t position = c.it->position + r / group, keys = position + 1 - c.first_key;
            const std::int32_t first = first_seen(c.op->window, position) - c.first_key, i = r - some.first;
            visible[i] = keys < 0 ? 0 : keys < c.keys ? keys : c.keys;
            plain[i] = first <= 0 && c.from <= 0;
            if (plain[i]) {
                top_of_row(c, r, visible[i]);
            } else {
                softmax_window_row<kBf16, kDirect>(c, r, first > 0 ? first : 0, visible[i], lanes[i]);
            }
        }
        for (std::int32_t r = some.first, i = 0; r < some.last; r++, i++)
            if (plain[i]) weights_of_row<kBf16, kDirect>(c, r, visible[i], lanes[i]);
        for (std::int32_t r = some.first, i = 0; r < some.last; r++, i++) {
            c.mem.sum[r] = fold_add(load(lanes[i]));
            if (keeps_pairs<kBf16, kDirect>() && !(c.mem.sum[r] == c.mem.sum[r])) canonical_nans(c, r);
        }
    }
    // The factors of all rows at once. In a span's first tile l and o are 0, and a factor of them changes nothing.
    for (std::int32_t r = rows.first; r < rows.last; r += 16) {
        const int n = rows.last - r < 16 ? rows.last - r : 16;
        const f32x16 a = exp2_nonpositive(load(c.mem.scale + r));
        store_first(c.mem.scale + r, a, n);
        store_first(c.mem.l + r, add(mul(load(c.mem.l + r), a), load(c.mem.sum + r)), n);
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA_NS
