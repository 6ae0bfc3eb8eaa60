// Row ops of mixtures of experts (docs/numerics.md, "Experts"). For rows.cpp only.
#pragma once
#include "octavo/math.h"
#include "rows.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

// The `k` largest of x[0..n), largest first, ties to the lower index. With NaNs any k different indices.
inline void choose_largest(const float* x, std::int32_t n, std::int32_t k, std::int32_t* ids, float* taken) {
    for (std::int32_t i = 0; i < n; i++) taken[i] = 0.0f;
    for (std::int32_t j = 0; j < k; j++) {
        std::int32_t best = -1;
        for (std::int32_t i = 0; i < n; i++)
            if (taken[i] == 0.0f && (best < 0 || x[i] > x[best])) best = i;
        ids[j] = best;
        taken[best] = 1.0f;
    }
}

// a: logits; b: ids, i32; out: weights, f32; norm: weights add up to factor.
inline void route(const RowOp& op, std::int64_t row, float* scratch, std::int64_t stride) {
    const float* x = read_row(op.a, row, scratch);
    auto* ids = reinterpret_cast<std::int32_t*>(row_of(op.b, row));
    auto* weights = reinterpret_cast<float*>(row_of(op.out, row));
    const std::int32_t n = op.a.heads * op.a.width, k = op.out.width;
    float* e = scratch + stride;
    choose_largest(x, n, k, ids, e);
    const f32x16 top = set1(x[ids[0]]);
    f32x16 lanes = zero_f32();
    for (std::int32_t i = 0; i < n; i += 16) {
        const std::int32_t left = n - i < 16 ? n - i : 16;
        const f32x16 p = select(mask_first(left), exp_of(sub(load_first(x + i, left), top)), zero_f32());
        store_first(e + i, p, left);
        lanes = add(lanes, p);
    }
    float total = fold_add(lanes);
    if (op.norm) {
        total = 0.0f;
        for (std::int32_t j = 0; j < k; j++) total += e[ids[j]];
    }
    for (std::int32_t j = 0; j < k; j++) weights[j] = e[ids[j]] / total * op.factor;
}

// a: a row for each of a token's experts; b: weights, f32; out: their sum, in order.
inline void combine(const RowOp& op, std::int64_t row, float* scratch, std::int64_t stride) {
    const auto* weights = reinterpret_cast<const float*>(row_of(op.b, row));
    const std::int32_t n = op.out.heads * op.out.width, k = op.b.width;
    float* y = begin_row(op.out, row, scratch + stride);
    for (std::int32_t j = 0; j < k; j++) {
        const float* x = read_row(op.a, row * k + j, scratch);
        const f32x16 w = set1(weights[j]);
        for (std::int32_t i = 0; i < n; i += 16) {
            const std::int32_t left = n - i < 16 ? n - i : 16;
            const f32x16 v = load_first(x + i, left);
            store_first(y + i, j == 0 ? mul(v, w) : fma(v, w, load_first(y + i, left)), left);
        }
    }
    write_row(op.out, row, y);
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA_NS
