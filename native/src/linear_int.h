// The integer kernels, defined in linear_int*.cpp, which are apart so that they compile beside each other.
//
// AVX-512 BF16 adds nothing to integers: that variant calls VNNI's, and a minute of compiling is saved.
#pragma once

#include "octavo/linear.h"

#if defined(OCTAVO_ISA_AVX512BF16)
#define OCTAVO_INTEGER_NS avx512vnni
#else
#define OCTAVO_INTEGER_NS OCTAVO_ISA_NS
#endif

namespace octavo::OCTAVO_INTEGER_NS {

void linear_int8(const LinearTask& t);
void linear_int8f(const LinearTask& t);
void linear_int8t(const LinearTask& t);
void linear_int4(const LinearTask& t);
void linear_int4m(const LinearTask& t);
void linear_int4z(const LinearTask& t);
void linear_int4k(const LinearTask& t);
void linear_int4n(const LinearTask& t);
void linear_int4x(const LinearTask& t);
void linear_int4e(const LinearTask& t);
void linear_int5(const LinearTask& t);
void linear_int5m(const LinearTask& t);
void linear_int5k(const LinearTask& t);
void linear_int6k(const LinearTask& t);
void linear_int3k(const LinearTask& t);
void linear_int2k(const LinearTask& t);

}  // namespace octavo::OCTAVO_INTEGER_NS
