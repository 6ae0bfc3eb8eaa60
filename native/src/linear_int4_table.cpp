// 4-bit codes that a table stands behind: linear_range.h, once a format.
#include "linear_int.h"
#include "linear_range.h"

namespace octavo::OCTAVO_ISA_NS {

void linear_int4n(const LinearTask& t) { quant_linear<WeightFormat::int4n>(t); }
void linear_int4x(const LinearTask& t) { quant_linear<WeightFormat::int4x>(t); }
void linear_int4e(const LinearTask& t) { quant_linear<WeightFormat::int4e>(t); }

}  // namespace octavo::OCTAVO_ISA_NS
