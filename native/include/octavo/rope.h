// Rotary tables, made at load.
#pragma once

#include <cstdint>

namespace octavo {

// cos and sin times `attention` of position * frequency, rows [first, last) of f32[positions][width]. The order of
// every operation is that of program/rope.py, sin_cos(): binary64, basic operations only, and so the same bits.
void rope_rows(const double* frequencies, int64_t width, double attention, int64_t first, int64_t last, float* cosines,
               float* sines);

}  // namespace octavo
