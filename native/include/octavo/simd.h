// Sixteen-lane vectors, the only vector width the kernels know.
//
// A kernel source is compiled once per ISA: the build defines one of OCTAVO_ISA_SCALAR, OCTAVO_ISA_AVX2,
// OCTAVO_ISA_AVX512VNNI, OCTAVO_ISA_AVX512BF16 and the name OCTAVO_ISA_NS, and everything a kernel defines lives in
// octavo::OCTAVO_ISA_NS, so that the linker can never replace one ISA's inline function by another's. Every operation
// gives the same bits in every variant (docs/numerics.md); only `prefetch` and the shape of `mask16` are free.
//
// clang-format off
// Types:       f32x16, i32x16, mask16 (one truth value a lane); accumulators of linears are linear_dot.h's.
// Memory:      load/store need no alignment. *_first(p, n) touch only the first n lanes, 0 <= n <= 16; absent ones read 0.
// Names:       set1, zero_f32, zero_i32, iota; load, load_i32, load_bf16 (and their _first), load_f16, load_i8, load_u8;
//              store, store_i32, store_bf16 (and _first), store_i8. look_up(table, indices): bytes out of 16.
// Arithmetic:  add sub mul div fma(a,b,c)=a*b+c neg abs max min sqrt round_even; max(a,b) is a > b ? a : b.
// Integers:    add sub mul min max, bit_and bit_or bit_xor, shift_left<n> shift_right<n> (logical) shift_right_signed<n>.
// Compare:     lt le eq (f32x16 and i32x16), select(m, a, b), mask_first(n), mask_and, mask_or, mask_not, any, bits.
// Convert:     to_f32, to_i32 (nearest even; out of range and NaN give INT_MIN), as_i32, as_f32 (bits), bf16_bits.
// Folds:       fold_add (the tree of numerics.md), fold_max, fold_min, fold_add_i32, fold_max_i32;
//              add_neighbours(a, b): pairs of lanes, of a and then of b; add_bytes: the four int8 of each lane.
// Weights:     store_bf16_numbers (32 lanes that are 0 or normal), times_power(p, n, x) = p * 2^n, 0 where x <= -126.
// bf16 pairs:  a lane of i32x16 holds elements 2p (low half) and 2p+1 (high half): load_i32, set1_pair, pair_even,
//              pair_odd, pair_fma(acc, a, b) = fma(a_even, b_even, fma(a_odd, b_odd, acc)), make_pairs(even, odd).
// int16 pairs: a lane holds two likewise: load_code_pairs (of 32 int8), store_i16 (16 lanes to 16 numbers),
//              pair_dot(acc, a, b) = acc + a_even * b_even + a_odd * b_odd.
// clang-format on
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#define OCTAVO_INLINE static inline __attribute__((always_inline))
#if defined(OCTAVO_EMULATE_AVX512) || defined(OCTAVO_ISA_SCALAR)
#define OCTAVO_UNROLL  // lanes that are arrays stay in memory anyway, and unrolled they take minutes to compile
#else
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")
#endif

#if !defined(OCTAVO_ISA_NS)
#error "simd.h is for kernel sources only: the build defines OCTAVO_ISA_NS and one OCTAVO_ISA_* macro (CMakeLists.txt)"
#endif

namespace octavo::OCTAVO_ISA_NS {

// ---- one number ---------------------------------------------------------------------------------------------------

OCTAVO_INLINE uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

OCTAVO_INLINE float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

OCTAVO_INLINE float bf16_to_f32(uint16_t h) { return float_of(static_cast<uint32_t>(h) << 16); }

// Nearest even; every NaN becomes 0x7FC0.
OCTAVO_INLINE uint16_t f32_to_bf16(float x) {
    const uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Exact; an f16 denormal is a normal f32, so flushing to zero never touches it.
OCTAVO_INLINE float f16_to_f32(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 31u;
    const uint32_t fraction = h & 0x3ffu;
    if (exponent == 31) return float_of(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0u));
    if (exponent != 0) return float_of(sign | ((exponent + 112u) << 23) | (fraction << 13));
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return float_of(sign | bits_of(magnitude));
}

}  // namespace octavo::OCTAVO_ISA_NS

#if defined(OCTAVO_ISA_SCALAR)
#include "octavo/simd_scalar.h"
#elif defined(OCTAVO_ISA_AVX2)
#include "octavo/simd_avx2.h"
#else
#include "octavo/simd_avx512.h"
#endif
