// Passes over a row of logits (docs/numerics.md, "Sampling").
#include "octavo/kernels.h"
#include "octavo/math.h"

namespace octavo::OCTAVO_ISA_NS {

// The largest number, the lowest index that has it, and whether every number is finite.
LogitScan scan_logits(const float* x, std::int64_t n) {
    f32x16 top = set1(-__builtin_inff());
    f32x16 odd = zero_f32();  // x - x is 0, or NaN where x is not finite
    std::int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const f32x16 v = load(x + i);
        top = max(v, top);
        odd = add(odd, sub(v, v));
    }
    if (i < n) {
        const int left = static_cast<int>(n - i);
        const f32x16 v = load_first(x + i, left);
        top = max(select(mask_first(left), v, top), top);
        odd = add(odd, sub(v, v));
    }
    LogitScan out;
    out.max = fold_max(top);
    out.finite = bits(eq(odd, zero_f32())) == 0xffffu;
    out.argmax = 0;
    const f32x16 wanted = set1(out.max);
    for (i = 0; i < n; i += 16) {
        const int left = n - i < 16 ? static_cast<int>(n - i) : 16;
        const mask16 found = mask_and(eq(load_first(x + i, left), wanted), mask_first(left));
        if (any(found)) {
            out.argmax = static_cast<std::int32_t>(i) + __builtin_ctz(bits(found));
            break;
        }
    }
    return out;
}

namespace {

template <bool kExp>
void pieces(const float* x, std::int64_t n, float temperature, float top, float* e, float* sums) {
    const f32x16 t = set1(temperature), high = set1(top);
    for (std::int64_t piece = 0; piece * kVocabPiece < n; piece++) {
        const std::int64_t first = piece * kVocabPiece, last = first + kVocabPiece < n ? first + kVocabPiece : n;
        f32x16 sum = zero_f32();
        for (std::int64_t i = first; i < last; i += 16) {
            const int left = last - i < 16 ? static_cast<int>(last - i) : 16;
            f32x16 v;
            if constexpr (kExp) {
                v = exp_of(sub(div(load_first(x + i, left), t), high));
                if (left < 16) v = select(mask_first(left), v, zero_f32());
                store_first(e + i, v, left);
            } else {
                v = load_first(e + i, left);
            }
            sum = add(sum, v);
        }
        sums[piece] = fold_add(sum);
    }
}

}  // namespace

// e = exp(x / temperature - top), and its sum in each piece of 1,024.
void exp_logits(const float* x, std::int64_t n, float temperature, float top, float* e, float* sums) {
    pieces<true>(x, n, temperature, top, e, sums);
}

// The sums of numbers already there.
void sum_pieces(float* e, std::int64_t n, float* sums) { pieces<false>(nullptr, n, 1.0f, 0.0f, e, sums); }

}  // namespace octavo::OCTAVO_ISA_NS
