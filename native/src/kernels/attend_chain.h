// The chains of attention: register tiles of rows x vectors, and one step of them for each way the cache may lie. For
// attend.cpp only.
#pragma once
#include "octavo/kernels.h"
#include "octavo/math.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

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
constexpr int tile_vectors(Source s, int rows) { return rows <= 3 || kPairDot || s != Source::bf16 ? 4 : 2; }
// Rows whose scores, weights and outputs stay in the first-level cache from one step of a tile to the next.
constexpr int kChunkRows = 24;
#elif defined(OCTAVO_ISA_SCALAR)
constexpr int tile_rows(Source) { return 2; }  // a compiler's registers, and its time
constexpr int tile_vectors(Source, int) { return 1; }
constexpr int kChunkRows = 1 << 20;
#else
constexpr int tile_rows(Source s) { return s == Source::bf16 ? 4 : 6; }
constexpr int tile_vectors(Source s, int rows) { return rows <= (s == Source::bf16 ? 2 : 3) ? 2 : 1; }
constexpr int kChunkRows = 1 << 20;
#endif

// What is asked for while 16 keys are used: V of the same keys while K is multiplied, and K of the tile to come while V
// is. Or, where kAskAlike, K so many groups of 16 keys later while K is, and V while V is: fewer lines then wait in the
// first-level cache, where those of all blocks fall into the same sets.
#if defined(OCTAVO_ISA_AVX512BF16) || defined(OCTAVO_ISA_AVX512VNNI)
constexpr bool kAskAlike = true;
constexpr int kAskKeys = 4, kAskValues = 3;
#else
constexpr bool kAskAlike = false;
constexpr int kAskKeys = 0, kAskValues = 0;
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
// With kAhead each step also asks for one line of each of NV runs that are wanted next: a burst of requests would fill
// the core's line buffers and stall it, one a step hides behind the arithmetic.
template <Source kSource, bool kAhead, int MR, int NV, int XK, int XR>
OCTAVO_INLINE void chain(Block<MR, NV>& b, const void* x_any, const std::uint8_t* const (&base)[NV],
                         std::int64_t y_stride, int n, const std::uint8_t* const (&ahead)[NV],
                         std::int64_t ahead_stride) {
    const std::uint8_t* y[NV];
    OCTAVO_UNROLL
    for (int v = 0; v < NV; v++) y[v] = base[v];
    std::int64_t line = 0;
    auto ask = [&] {
        if constexpr (kAhead) {
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) prefetch(ahead[v] + line);
            line += ahead_stride;
        }
    };
    f32x16 t[NV];
    if constexpr (kSource == Source::bf16 && kPairDot) {
        const auto* x = static_cast<const std::int32_t*>(x_any);
        for (int k = 0; k < n; k += 2, x += XK) {
            ask();
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
            ask();
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
            ask();
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
            ask();
            OCTAVO_UNROLL
            for (int v = 0; v < NV; v++) {
                t[v] = load(reinterpret_cast<const float*>(y[v]));
                y[v] += y_stride;
            }
            step<MR, NV>(b, x, XR, t);
        }
    }
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA_NS
