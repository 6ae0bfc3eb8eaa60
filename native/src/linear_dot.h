// Integer dot products of one group of 32 inputs for 16 columns: the only part of the linears that knows its ISA.
//
// A quad is 64 bytes: for each of 16 columns, 4 consecutive inputs. A row's quad is its 4 codes repeated in every lane.
//
//   Acc acc = D::start(correction);              one row, one run of D::kRun quads; without a correction
//   Acc acc = D::product(D::prepare(w), x);      the first quad's product is where it starts
//   acc = D::dot(acc, D::prepare(w), x);         for each (other) quad of the run
//   i32x16 exact = D::finish(acc);               or D::finish(acc, D::factor(s)): s times the sum
//
// w is D::center(stored codes 0 and up), or what it was when codes were unpacked. A format's offset is either taken off
// there (D::kCenters) or by the correction, -offset times the sum of the row's codes in the run, with which a sum
// starts.
//
//   NibbleDot   codes 0..15, offset 8 (int4). In the even halves of AVX2's words
//               sum((code - 8) x) - 8 sum(x of odd halves) is at most 32 * 8 * 127 = 32512, so the correction fits.
//   FiveDot     codes 0..31, offset 16 (int5): likewise at most 16 * 16 * 127 in a run of 4 quads, and so is every sum
//               on the way: with n of the 16 inputs taken, 127 (256 - n). Also codes 0..24, offset 12 (int4e).
//   SmallDot    |code - offset| <= 32, runs of 4 quads: the formats with a scale per 16 inputs.
//   ByteDot     int8, also looked up (int4n, int4x).
#pragma once

#include "octavo/simd.h"

namespace octavo::OCTAVO_ISA_NS {

OCTAVO_INLINE i32x16 set1_quad(const int8_t* codes) {
    int32_t quad;
    memcpy(&quad, codes, 4);
    return set1(quad);
}

#if defined(OCTAVO_ISA_SCALAR)

struct NibbleDot {
    using Weights = i32x16;
    static constexpr int kOffset = 0, kRun = 8;
    static constexpr bool kCenters = false;
    OCTAVO_INLINE i32x16 start(int32_t correction) { return set1(correction); }
    OCTAVO_INLINE i32x16 center(i32x16 w) { return w; }
    OCTAVO_INLINE Weights prepare(i32x16 w) { return w; }
    OCTAVO_INLINE i32x16 dot(i32x16 acc, Weights w, i32x16 x) {
        int8_t a[64];
        int8_t b[64];
        memcpy(a, w.v, 64);
        memcpy(b, x.v, 64);
        for (int j = 0; j < 16; ++j) {
            for (int i = 0; i < 4; ++i) acc.v[j] += a[4 * j + i] * b[4 * j + i];
        }
        return acc;
    }
    OCTAVO_INLINE i32x16 product(Weights w, i32x16 x) { return dot(zero_i32(), w, x); }
    OCTAVO_INLINE i32x16 factor(i32x16 s) { return s; }
    OCTAVO_INLINE i32x16 finish(i32x16 acc) { return acc; }
    OCTAVO_INLINE i32x16 finish(i32x16 acc, i32x16 s) { return mul(acc, s); }
};
struct FiveDot : NibbleDot {};
struct ByteDot : NibbleDot {};
template <int offset>
struct SmallDot : NibbleDot {
    static constexpr int kRun = 4;
};

OCTAVO_INLINE i32x16 low_nibbles(i32x16 v) { return bit_and(v, set1(int32_t{0x0f0f0f0f})); }
OCTAVO_INLINE i32x16 high_nibbles(i32x16 v) { return low_nibbles(shift_right<4>(v)); }

#elif defined(OCTAVO_ISA_AVX2)

// An addition the compiler may not reorder: g++ would regroup a chain of integer sums and spill all its terms.
OCTAVO_INLINE i32x16 add_words(i32x16 acc, i32x16 x) {
    asm("vpaddw %1, %0, %0" : "+x"(acc.lo) : "x"(x.lo));
    asm("vpaddw %1, %0, %0" : "+x"(acc.hi) : "x"(x.hi));
    return acc;
}
OCTAVO_INLINE i32x16 add_dwords(i32x16 acc, i32x16 x) {
    asm("vpaddd %1, %0, %0" : "+x"(acc.lo) : "x"(x.lo));
    asm("vpaddd %1, %0, %0" : "+x"(acc.hi) : "x"(x.hi));
    return acc;
}

// Eight quads of at most 2 * 15 * 127 fit an int16 (30,480), so one widening a group is enough.
struct NibbleDot {
    using Weights = i32x16;
    static constexpr int kOffset = 0, kRun = 8;
    static constexpr bool kCenters = false;
    OCTAVO_INLINE i32x16 start(int32_t correction) { return set1(correction & 0xffff); }
    OCTAVO_INLINE i32x16 center(i32x16 w) { return w; }
    OCTAVO_INLINE Weights prepare(i32x16 w) { return w; }
    OCTAVO_INLINE i32x16 product(Weights w, i32x16 x) {
        return {_mm256_maddubs_epi16(w.lo, x.lo), _mm256_maddubs_epi16(w.hi, x.lo)};
    }
    OCTAVO_INLINE i32x16 dot(i32x16 acc, Weights w, i32x16 x) { return add_words(acc, product(w, x)); }
    OCTAVO_INLINE i32x16 finish(i32x16 acc) {
        const __m256i ones = _mm256_set1_epi16(1);
        return {_mm256_madd_epi16(acc.lo, ones), _mm256_madd_epi16(acc.hi, ones)};
    }
};

// Four quads of at most 2 * 31 * 127 fit (31,496).
struct FiveDot : NibbleDot {
    static constexpr int kRun = 4;
};

// |code| * (x with code's sign): four quads of at most 2 * 32 * 127 fit (32,512). The scale of the run's 16 inputs
// multiplies where the halves are added up.
template <int offset>
struct SmallDot : NibbleDot {
    struct Weights {
        i32x16 w, magnitude;
    };
    static constexpr int kRun = 4;
    static constexpr bool kCenters = true;
    OCTAVO_INLINE i32x16 start(int32_t) { return zero_i32(); }
    OCTAVO_INLINE i32x16 center(i32x16 w) {
        const __m256i by = _mm256_set1_epi8(offset);
        return {_mm256_sub_epi8(w.lo, by), _mm256_sub_epi8(w.hi, by)};
    }
    OCTAVO_INLINE Weights prepare(i32x16 w) { return {w, {_mm256_abs_epi8(w.lo), _mm256_abs_epi8(w.hi)}}; }
    OCTAVO_INLINE i32x16 product(const Weights& w, i32x16 x) {
        return {_mm256_maddubs_epi16(w.magnitude.lo, _mm256_sign_epi8(x.lo, w.w.lo)),
                _mm256_maddubs_epi16(w.magnitude.hi, _mm256_sign_epi8(x.lo, w.w.hi))};
    }
    OCTAVO_INLINE i32x16 dot(i32x16 acc, const Weights& w, i32x16 x) { return add_words(acc, product(w, x)); }
    OCTAVO_INLINE i32x16 factor(i32x16 s) { return bit_or(bit_and(s, set1(0xffff)), shift_left<16>(s)); }
    using NibbleDot::finish;
    OCTAVO_INLINE i32x16 finish(i32x16 acc, i32x16 s) {
        return {_mm256_madd_epi16(acc.lo, s.lo), _mm256_madd_epi16(acc.hi, s.hi)};
    }
};
// Codes that start at 0 need no sign.
template <>
struct SmallDot<0> : NibbleDot {
    static constexpr int kRun = 4;
    OCTAVO_INLINE i32x16 factor(i32x16 s) { return SmallDot<1>::factor(s); }
    using NibbleDot::finish;
    OCTAVO_INLINE i32x16 finish(i32x16 acc, i32x16 s) { return SmallDot<1>::finish(acc, s); }
};

// |w| * (x with w's sign): 2 * 128 * 127 = 32,512 fits, two of them do not.
struct ByteDot {
    struct Weights {
        i32x16 w, magnitude;
    };
    static constexpr int kOffset = 0, kRun = 8;
    static constexpr bool kCenters = false;
    OCTAVO_INLINE i32x16 start(int32_t) { return zero_i32(); }
    OCTAVO_INLINE i32x16 center(i32x16 w) { return w; }
    OCTAVO_INLINE Weights prepare(i32x16 w) { return {w, {_mm256_abs_epi8(w.lo), _mm256_abs_epi8(w.hi)}}; }
    OCTAVO_INLINE i32x16 product(const Weights& w, i32x16 x) {
        return NibbleDot::finish({_mm256_maddubs_epi16(w.magnitude.lo, _mm256_sign_epi8(x.lo, w.w.lo)),
                                  _mm256_maddubs_epi16(w.magnitude.hi, _mm256_sign_epi8(x.lo, w.w.hi))});
    }
    OCTAVO_INLINE i32x16 dot(i32x16 acc, const Weights& w, i32x16 x) { return add_dwords(acc, product(w, x)); }
    OCTAVO_INLINE i32x16 finish(i32x16 acc) { return acc; }
};

OCTAVO_INLINE i32x16 low_nibbles(i32x16 v) { return bit_and(v, set1(int32_t{0x0f0f0f0f})); }
OCTAVO_INLINE i32x16 high_nibbles(i32x16 v) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(v.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(v.hi, 4), mask)};
}

#else

struct NibbleDot {
    using Weights = i32x16;
    static constexpr int kOffset = 0, kRun = 8;
    static constexpr bool kCenters = false;
    OCTAVO_INLINE i32x16 start(int32_t correction) { return set1(correction); }
    OCTAVO_INLINE i32x16 center(i32x16 w) { return w; }
    OCTAVO_INLINE Weights prepare(i32x16 w) { return w; }
    OCTAVO_INLINE i32x16 dot(i32x16 acc, Weights w, i32x16 x) {
#if defined(OCTAVO_EMULATE_AVX512)
        return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)};
#else
        // By hand: g++ 12 moves and spills the accumulators of the intrinsic.
        asm("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(w.v), "v"(x.v));
        return acc;
#endif
    }
    OCTAVO_INLINE i32x16 product(Weights w, i32x16 x) { return dot(zero_i32(), w, x); }
    OCTAVO_INLINE i32x16 factor(i32x16 s) { return s; }
    OCTAVO_INLINE i32x16 finish(i32x16 acc) { return acc; }
    OCTAVO_INLINE i32x16 finish(i32x16 acc, i32x16 s) { return mul(acc, s); }
};
struct FiveDot : NibbleDot {};
template <int offset>
struct SmallDot : NibbleDot {
    static constexpr int kRun = 4;
};

// The weights' bytes become unsigned, w + 128, and the sum starts at -128 a unit of x.
struct ByteDot : NibbleDot {
    static constexpr int kOffset = 128;
    OCTAVO_INLINE Weights prepare(i32x16 w) { return bit_xor(w, set1(static_cast<int32_t>(0x80808080u))); }
};

OCTAVO_INLINE i32x16 low_nibbles(i32x16 v) { return bit_and(v, set1(int32_t{0x0f0f0f0f})); }
OCTAVO_INLINE i32x16 high_nibbles(i32x16 v) { return low_nibbles(shift_right<4>(v)); }

#endif

}  // namespace octavo::OCTAVO_ISA_NS
