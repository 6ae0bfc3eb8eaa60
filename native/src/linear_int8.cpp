// 8-bit codes: linear_range.h, once a format.
#include "linear_int.h"
#include "linear_range.h"

namespace octavo::OCTAVO_ISA_NS {

void linear_int8(const LinearTask& t) { quant_linear<WeightFormat::int8>(t); }
void linear_int8f(const LinearTask& t) { quant_linear<WeightFormat::int8f>(t); }

}  // namespace octavo::OCTAVO_ISA_NS
