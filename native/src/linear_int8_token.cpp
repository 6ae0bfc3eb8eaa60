// 8-bit codes with one scale a column: linear_token.h.
#include "linear_int.h"
#include "linear_token.h"

namespace octavo::OCTAVO_ISA_NS {

void linear_int8t(const LinearTask& t) { token_linear(t); }

}  // namespace octavo::OCTAVO_ISA_NS
