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

// The same where the row sees keys [first, visible), first > 0 or before it blocks that are gone.
template <bool kBf16, bool kDirect>
void softmax_window_row(const Item& c, std::int32_t r, int first, int visible) {
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
        if constexpr (keeps_pairs<kBf16, kDirect>()) {
            store_bf16(c.mem.p + r * kTileKeys + g * 16, e);
        } else {
            store(s + g * 16, kBf16 ? round_bf16_number(e) : e);
        }
    }
    c.mem.m[r] = m;
    c.mem.scale[r] = any ? old - m : 0.0f;
    c.mem.sum[r] = fold_add(sum);
}

template <bool kBf16, bool kDirect>
void softmax(const Item& c) {
    const std::int32_t group = c.op->group;
    for (std::int32_t r = 0; r < c.rows; r++) {
        const std::int32_t position = c.it->position + r / group;
        std::int32_t visible = position + 1 - c.first_key;
        visible = visible < 0 ? 0 : visible < c.keys ? visible : c.keys;
        const std::int32_t first = first_seen(c.op->window, position) - c.first_key;
        if (first > 0 || c.from > 0) {
            softmax_window_row<kBf16, kDirect>(c, r, first > 0 ? first : 0, visible);
        } else {
            softmax_row<kBf16, kDirect>(c, r, visible);
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
