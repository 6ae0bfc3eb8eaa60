// Scores to weights, row by row: soft caps, masks at both ends, running maxima and sums. For attend.cpp only.
#pragma once
#include "attend_item.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

// tanh(s / cap) * cap, in base 2: `scale` held 1 / cap.
void cap_scores(const Item& c) {
    const f32x16 factor = set1(c.op->cap);
    const int groups = (c.keys + 15) / 16;
    for (std::int32_t r = 0; r < c.rows; r++)
        for (int g = c.from / 16; g < groups; g++) {
            float* s = c.mem.s + r * kTileKeys + g * 16;
            store(s, mul(tanh_of(load(s)), factor));
        }
}

// Weights of 16 or 32 keys from group g on, as the chains over V read them. What a bf16 NaN's bits are is settled by
// `settle`.
template <bool kBf16, bool kDirect>
OCTAVO_INLINE void put_weights(const Item& c, std::int32_t r, int g, f32x16 e) {
    if constexpr (keeps_pairs<kBf16, kDirect>()) {
        store_bf16_weights(c.mem.p + r * kTileKeys + g * 16, e);
    } else {
        store(c.mem.s + r * kTileKeys + g * 16, kBf16 ? round_bf16_number(e) : e);
    }
}
template <bool kBf16, bool kDirect>
OCTAVO_INLINE void put_weights(const Item& c, std::int32_t r, int g, f32x16 e, f32x16 next) {
    if constexpr (keeps_pairs<kBf16, kDirect>()) {
        store_bf16_weights(c.mem.p + r * kTileKeys + g * 16, e, next);
    } else {
        put_weights<kBf16, kDirect>(c, r, g, e);
        put_weights<kBf16, kDirect>(c, r, g + 1, next);
    }
}

// The sum of the row's weights is known: every NaN among them becomes the one that numerics.md names.
template <bool kBf16, bool kDirect>
OCTAVO_INLINE void settle(const Item& c, std::int32_t r, f32x16 sum) {
    const float total = fold_add(sum);
    c.mem.sum[r] = total;
    if constexpr (keeps_pairs<kBf16, kDirect>()) {
        if (total == total) return;
        std::uint16_t* p = c.mem.p + r * kTileKeys;
        for (int key = c.from / 16 * 16; key < (c.keys + 15) / 16 * 16; key++)
            if ((p[key] & 0x7fff) > 0x7f80) p[key] = 0x7fc0;
    }
}

// The row's new maximum, over its first `visible` keys of the tile too, and what it is below the old one.
OCTAVO_INLINE void raise_maximum(const Item& c, std::int32_t r, int visible) {
    const float* s = c.mem.s + r * kTileKeys;
    const float old = c.mem.m[r];
    float m = old;
    if (visible > 0) {
        const int whole = visible / 16, tail = visible % 16;
        f32x16 top = set1(old);
        int g = 0;
        for (; g + 2 <= whole; g += 2) top = max(max(load(s + g * 16), load(s + g * 16 + 16)), top);
        if (g < whole) top = max(load(s + g * 16), top);
        if (tail) top = max(select(mask_first(tail), load(s + whole * 16), top), top);
        m = fold_max(top);
    }
    c.mem.m[r] = m;
    c.mem.scale[r] = visible > 0 ? old - m : 0.0f;
}

// Scores to weights and their 16-lane sum.
template <bool kBf16, bool kDirect>
OCTAVO_INLINE void weigh_row(const Item& c, std::int32_t r, int visible) {
    const float* s = c.mem.s + r * kTileKeys;
    const int whole = visible / 16, tail = visible % 16, groups = (c.keys + 15) / 16;
    const f32x16 mv = set1(c.mem.m[r]);
    auto weight = [&](int g) { return exp2_nonpositive(sub(load(s + g * 16), mv)); };
    f32x16 sum = zero_f32();
    int g = 0;
    for (; g + 2 <= whole; g += 2) {
        const f32x16 e = weight(g), next = weight(g + 1);
        sum = add(add(sum, e), next);
        put_weights<kBf16, kDirect>(c, r, g, e, next);
    }
    if (g < whole) {
        const f32x16 e = weight(g);
        sum = add(sum, e);
        put_weights<kBf16, kDirect>(c, r, g++, e);
    }
    if (tail) {
        const f32x16 e = select(mask_first(tail), weight(g), zero_f32());
        sum = add(sum, e);
        put_weights<kBf16, kDirect>(c, r, g++, e);
    }
    for (; g < groups; g++) put_weights<kBf16, kDirect>(c, r, g, zero_f32());
    settle<kBf16, kDirect>(c, r, sum);
}

// Both where the row sees keys [first, visible), first > 0 or before it blocks that are gone.
template <bool kBf16, bool kDirect>
void softmax_window_row(const Item& c, std::int32_t r, int first, int visible) {
    const float* s = c.mem.s + r * kTileKeys;
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
    settle<kBf16, kDirect>(c, r, sum);
}

// The keys of the tile that row r sees.
struct Seen {
    std::int32_t first, end;
};
OCTAVO_INLINE Seen seen_by(const Item& c, std::int32_t r) {
    const std::int32_t position = c.it->position + r / c.op->group;
    const std::int32_t end = position + 1 - c.first_key, first = first_seen(c.op->window, position) - c.first_key;
    return {first > 0 ? first : 0, end < 0 ? 0 : end < c.keys ? end : c.keys};
}

template <bool kBf16, bool kDirect>
void softmax(const Item& c) {
    auto whole_row = [&](Seen seen) { return seen.first == 0 && c.from == 0; };
    // Maxima of all rows first: no weight waits for a fold.
    for (std::int32_t r = 0; r < c.rows; r++) {
        const Seen seen = seen_by(c, r);
        if (whole_row(seen)) raise_maximum(c, r, seen.end);
    }
    for (std::int32_t r = 0; r < c.rows; r++) {
        const Seen seen = seen_by(c, r);
        if (whole_row(seen)) {
            weigh_row<kBf16, kDirect>(c, r, seen.end);
        } else {
            softmax_window_row<kBf16, kDirect>(c, r, seen.first, seen.end);
        }
    }
    // The factors of all rows at once. In a span's first tile l and o are 0, and a factor of them changes nothing.
    for (std::int32_t r = 0; r < c.rows; r += 16) {
        const f32x16 a = exp2_nonpositive(load(c.mem.scale + r));
        store(c.mem.scale + r, a);
        store(c.mem.l + r, add(mul(load(c.mem.l + r), a), load(c.mem.sum + r)));
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA_NS
