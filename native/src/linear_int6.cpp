// Formats with a scale for every 16 inputs: linear_range.h, once a format.
#include "linear_int.h"
#include "linear_range.h"

namespace octavo::OCTAVO_ISA_NS {

void linear_int6k(const LinearTask& t) { quant_linear<WeightFormat::int6k>(t); }
void linear_int3k(const LinearTask& t) { quant_linear<WeightFormat::int3k>(t); }
void linear_int2k(const LinearTask& t) { quant_linear<WeightFormat::int2k>(t); }

}  // namespace octavo::OCTAVO_ISA_NS
