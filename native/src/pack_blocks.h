// The block formats of files, one group of 32 at a time. Part of pack.cpp.
#pragma once

#include <cstdint>

#include "octavo/pack.h"

namespace octavo::blocks {

// A group as its source has it. Which scales mean anything depends on source_info().scale (linear.h says how).
struct Group {
    uint32_t quads[8];        // code + source_info().offset of input 4 q + b in byte b of quad q
    uint16_t scale, minimum;  // f16; of the super group where there is one
    float wide;
    uint8_t
        small[2];  // super: scale, minimum; super16: one int8 a half; super16_min: two nibbles a half; half_zero: [0]
};

// Group g of a row.
void read_group(SourceFormat source, const uint8_t* row, size_t g, Group& out);

// Its numbers: each product exact, each sum rounded once.
void to_numbers(SourceFormat source, const Group& group, float* out);

}  // namespace octavo::blocks
