// The linear kernel: which function does a format. Compiled once per ISA, as are linear_int*.cpp.
#include "linear_float.h"
#include "linear_int.h"
#include "linear_range.h"

namespace octavo::OCTAVO_ISA_NS {

template <bool is_bf16, int panels>
OCTAVO_INLINE void float_range(const LinearTask& t, int64_t panel, int64_t row0, int64_t row1) {
    const size_t next = panels * panel_bytes(t.weight.format, static_cast<size_t>(t.weight.k));
    over_rows<kFloatRows>(row0, row1, [&]<int rows>(int64_t row) {
        // As in quant_range: of several tiles the last fetches the panels that follow.
        const size_t ahead = row1 - row0 > kFloatRows && row + rows == row1 ? next : kAhead;
        if constexpr (is_bf16) {
            bf16_tile<rows, panels>(t, row, panel, ahead);
        } else {
            f32_tile<rows, panels>(t, row, panel, ahead);
        }
    });
}

template <bool is_bf16>
static void float_linear(const LinearTask& t) {
    const int64_t block = static_cast<int64_t>(linear_row_block(t.weight.format, static_cast<size_t>(t.weight.k)));
    for (int64_t row0 = t.row0; row0 < t.row1; row0 += block) {
        const int64_t row1 = row0 + block < t.row1 ? row0 + block : t.row1;
        int64_t panel = t.panel0;
        for (; panel + kPanels <= t.panel1; panel += kPanels) float_range<is_bf16, kPanels>(t, panel, row0, row1);
        for (; panel < t.panel1; ++panel) float_range<is_bf16, 1>(t, panel, row0, row1);
    }
}

void linear_panels(const LinearTask& task) {
    switch (task.weight.format) {
        case WeightFormat::f32: return float_linear<false>(task);
        case WeightFormat::bf16: return float_linear<true>(task);
        case WeightFormat::int8: return OCTAVO_INTEGER_NS::linear_int8(task);
        case WeightFormat::int8f: return OCTAVO_INTEGER_NS::linear_int8f(task);
        case WeightFormat::int8t: return OCTAVO_INTEGER_NS::linear_int8t(task);
        case WeightFormat::int4: return OCTAVO_INTEGER_NS::linear_int4(task);
        case WeightFormat::int4m: return OCTAVO_INTEGER_NS::linear_int4m(task);
        case WeightFormat::int4z: return OCTAVO_INTEGER_NS::linear_int4z(task);
        case WeightFormat::int4k: return OCTAVO_INTEGER_NS::linear_int4k(task);
        case WeightFormat::int4n: return OCTAVO_INTEGER_NS::linear_int4n(task);
        case WeightFormat::int4x: return OCTAVO_INTEGER_NS::linear_int4x(task);
        case WeightFormat::int4e: return OCTAVO_INTEGER_NS::linear_int4e(task);
        case WeightFormat::int5: return OCTAVO_INTEGER_NS::linear_int5(task);
        case WeightFormat::int5m: return OCTAVO_INTEGER_NS::linear_int5m(task);
        case WeightFormat::int5k: return OCTAVO_INTEGER_NS::linear_int5k(task);
        case WeightFormat::int6k: return OCTAVO_INTEGER_NS::linear_int6k(task);
        case WeightFormat::int3k: return OCTAVO_INTEGER_NS::linear_int3k(task);
        case WeightFormat::int2k: return OCTAVO_INTEGER_NS::linear_int2k(task);
    }
}

}  // namespace octavo::OCTAVO_ISA_NS
