// Rows to q8, and columns of a packed weight back to numbers. Compiled once per ISA.
#include "octavo/linear.h"
#include "octavo/simd.h"

namespace octavo::OCTAVO_ISA_NS {

void quantize_row(const float* x, int64_t width, uint8_t* row) {
    const int64_t groups = static_cast<int64_t>(groups_of(static_cast<size_t>(width)));
    int8_t* codes = reinterpret_cast<int8_t*>(row);
    float* scales = reinterpret_cast<float*>(row + q8_scales_at(static_cast<size_t>(width)));
    float* sums = reinterpret_cast<float*>(row + q8_sums_at(static_cast<size_t>(width)));
    for (int64_t g = 0; g < groups; ++g) {
        const float* group = x + kGroup * g;
        const int64_t left = width - kGroup * g;
        f32x16 a;
        f32x16 b;
        if (left >= kGroup) {
            a = load(group);
            b = load(group + 16);
        } else {
            a = load_first(group, left < 16 ? static_cast<int>(left) : 16);
            b = left > 16 ? load_first(group + 16, static_cast<int>(left) - 16) : zero_f32();
        }
        // As integers the magnitudes have an order that keeps infinities and NaNs on top.
        const float amax = float_of(static_cast<uint32_t>(fold_max_i32(max(as_i32(abs(a)), as_i32(abs(b))))));
        const bool finite = amax < __builtin_inff();
        const bool zero = amax < 0x1p-100f;  // 127 / amax would overflow, amax / 127 would be denormal
        const float inverse = finite && !zero ? 127.0f / amax : 0.0f;
        const float scale = !finite ? __builtin_nanf("") : zero ? 0.0f : amax / 127.0f;
        const i32x16 ca = finite ? to_i32(mul(a, set1(inverse))) : zero_i32();
        const i32x16 cb = finite ? to_i32(mul(b, set1(inverse))) : zero_i32();
        store_i8(codes + kGroup * g, ca);
        store_i8(codes + kGroup * g + 16, cb);
        scales[g] = scale;
        sums[g] = scale * static_cast<float>(fold_add_i32(add(ca, cb)));
    }
}

// Element k of one column, straight from the panel.
static float element(const LinearWeight& w, const uint8_t* panel, int64_t column, int64_t k) {
    const uint8_t* meta = panel + panel_code_bytes(w.format, static_cast<size_t>(w.k)) +
                          group_meta_bytes(w.format) * static_cast<size_t>(k / kGroup);
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(meta);
    switch (w.format) {
        case WeightFormat::f32: return reinterpret_cast<const float*>(panel)[k * 16 + column];
        case WeightFormat::bf16:
            return bf16_to_f32(reinterpret_cast<const uint16_t*>(panel)[(k / 2 * 16 + column) * 2 + k % 2]);
        case WeightFormat::int8: {
            const int8_t code = reinterpret_cast<const int8_t*>(panel)[(k / 4 * 16 + column) * 4 + k % 4];
            return f16_to_f32(scales[column]) * static_cast<float>(code);
        }
        case WeightFormat::int4:
        case WeightFormat::int4m: break;
    }
    const int byte = panel[(k / 8 * 16 + column) * 4 + k % 4];
    const int code = k % 8 < 4 ? byte & 15 : byte >> 4;
    const float scale = f16_to_f32(scales[column]);
    if (w.format == WeightFormat::int4) return scale * static_cast<float>(code - 8);
    return fma1(scale, static_cast<float>(code), f16_to_f32(scales[kPanel + column]));
}

void dequantize_row(const LinearWeight& weight, int64_t column, float* out) {
    const uint8_t* panel = weight.panels + static_cast<size_t>(column / kPanel) *
                                               panel_bytes(weight.format, static_cast<size_t>(weight.k));
    for (int64_t k = 0; k < weight.k; ++k) out[k] = element(weight, panel, column % kPanel, k);
}

}  // namespace octavo::OCTAVO_ISA_NS
