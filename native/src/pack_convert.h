// Numbers of the float sources, and the quantisers. Part of pack.cpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "octavo/pack.h"

namespace octavo::convert {

inline float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

inline uint32_t to_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

inline float from_f16(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 31u;
    const uint32_t fraction = h & 0x3ffu;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0u));
    if (exponent != 0) return from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
    return from_bits(sign | to_bits(static_cast<float>(fraction) * 0x1p-24f));
}

// Nearest even; overflow gives infinity, a NaN 0x7E00.
inline uint16_t to_f16(float x) {
    const uint32_t sign = (to_bits(x) >> 16) & 0x8000u;
    const uint32_t magnitude = to_bits(x) & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7e00;
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        // A denormal f16: adding 0.5 leaves the wanted integer in the low bits, rounded to nearest even.
        return static_cast<uint16_t>(sign | (to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000u));
    }
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

inline uint16_t to_bf16(float x) {
    const uint32_t u = to_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// A row of a float source.
inline void read_floats(SourceFormat source, const uint8_t* row, int64_t k, float* out) {
    uint16_t h;
    if (source == SourceFormat::f32) memcpy(out, row, 4 * static_cast<size_t>(k));
    for (int64_t i = 0; i < k && source != SourceFormat::f32; ++i) {
        memcpy(&h, row + 2 * i, 2);
        out[i] = source == SourceFormat::f16 ? from_f16(h) : from_bits(uint32_t{h} << 16);
    }
}

inline int nearest(float x, int low, int high) {
    if (!(x > static_cast<float>(low))) return low;
    if (x >= static_cast<float>(high)) return high;
    return static_cast<int>(std::lrintf(x));
}

// Symmetric: scale = amax / 127 as f16, codes by the rounded scale. Returns the f16 scale.
inline uint16_t quantize_int8(const float* x, int count, int8_t* codes) {
    float amax = 0;
    for (int i = 0; i < count; ++i) amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
    const uint16_t half = to_f16(amax / 127.0f);
    const float scale = from_f16(half);
    if (scale == 0) return 0;
    for (int i = 0; i < count; ++i) codes[i] = static_cast<int8_t>(nearest(x[i] / scale, -127, 127));
    return half;
}

// x = scale * code + min. Starts from the range of the group and refits scale and min to the codes by least squares,
// keeping the best of a few narrower ranges too: outliers are worth clipping a little.
void quantize_int4m(const float* x, int count, uint8_t* codes, uint16_t* scale, uint16_t* minimum);

}  // namespace octavo::convert
