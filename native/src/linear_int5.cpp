// 5-bit codes: linear_range.h, once a format.
#include "linear_int.h"
#include "linear_range.h"

namespace octavo::OCTAVO_ISA_NS {

void linear_int5(const LinearTask& t) { quant_linear<WeightFormat::int5>(t); }
void linear_int5m(const LinearTask& t) { quant_linear<WeightFormat::int5m>(t); }
void linear_int5k(const LinearTask& t) { quant_linear<WeightFormat::int5k>(t); }

}  // namespace octavo::OCTAVO_ISA_NS
