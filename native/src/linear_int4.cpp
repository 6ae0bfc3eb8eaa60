// 4-bit codes: linear_range.h, once a format.
#include "linear_int.h"
#include "linear_range.h"

namespace octavo::OCTAVO_ISA_NS {

void linear_int4(const LinearTask& t) { quant_linear<WeightFormat::int4>(t); }
void linear_int4m(const LinearTask& t) { quant_linear<WeightFormat::int4m>(t); }
void linear_int4z(const LinearTask& t) { quant_linear<WeightFormat::int4z>(t); }
void linear_int4k(const LinearTask& t) { quant_linear<WeightFormat::int4k>(t); }

}  // namespace octavo::OCTAVO_ISA_NS
