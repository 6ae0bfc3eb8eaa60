// Rows to q8 and q8t, and columns of a packed weight back to numbers. Compiled once per ISA.
#include "octavo/linear.h"
#include "octavo/simd.h"

namespace octavo::OCTAVO_ISA_NS {

void quantize_columns(const float* x, int64_t n, int64_t column, int64_t width, uint8_t* row) {
    int8_t* codes = reinterpret_cast<int8_t*>(row) + column;
    float* scales = reinterpret_cast<float*>(row + q8_scales_at(static_cast<size_t>(width))) + column / kGroup;
    float* sums = reinterpret_cast<float*>(row + q8_sums_at(static_cast<size_t>(width))) + column / kGroup;
    for (int64_t g = 0; kGroup * g < n; ++g) {
        const float* group = x + kGroup * g;
        const int64_t left = n - kGroup * g;
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
        const bool finite = amax < kQ8Top;
        const bool some = finite && amax >= kQ8Least;
        // The exponent of amax, one more from 127.5 / 64 on: there 64 * x / 2^exponent would round to 128.
        const uint32_t exponent = (bits_of(amax) + 0x10000) >> 23;
        const float scale = !finite ? __builtin_nanf("") : some ? float_of((exponent - 6) << 23) : 1.0f;
        const f32x16 inverse = set1(some ? float_of((260 - exponent) << 23) : 0.0f);
        const i32x16 ca = finite ? to_i32(mul(a, inverse)) : zero_i32();
        const i32x16 cb = finite ? to_i32(mul(b, inverse)) : zero_i32();
        store_i8(codes + kGroup * g, ca);
        store_i8(codes + kGroup * g + 16, cb);
        scales[g] = scale;
        sums[g] = scale * static_cast<float>(fold_add_i32(add(ca, cb)));
    }
}

void quantize_row(const float* x, int64_t width, uint8_t* row) { quantize_columns(x, width, 0, width, row); }

void quantize_token(const float* x, int64_t width, uint8_t* row) {
    const auto at = [&](int64_t i) {
        return width - i >= 16 ? load(x + i) : load_first(x + i, static_cast<int>(width - i));
    };
    i32x16 top = zero_i32();
    for (int64_t i = 0; i < width; i += 16) top = max(top, as_i32(abs(at(i))));
    const float amax = float_of(static_cast<uint32_t>(fold_max_i32(top)));  // as above
    const bool finite = amax < __builtin_inff();
    const bool zero = amax < 0x1p-100f;  // 127 / amax would overflow, amax / 127 would be denormal
    const f32x16 inverse = set1(finite && !zero ? 127.0f / amax : 0.0f);
    const float scale = !finite ? __builtin_nanf("") : zero ? 0.0f : amax / 127.0f;
    int8_t* codes = reinterpret_cast<int8_t*>(row);
    const int64_t padded = static_cast<int64_t>(kGroup * groups_of(static_cast<size_t>(width)));
    i32x16 sums = zero_i32();
    for (int64_t i = 0; i < padded; i += 16) {
        const i32x16 c = finite && i < width ? to_i32(mul(at(i), inverse)) : zero_i32();
        store_i8(codes + i, c);
        sums = add(sums, c);
    }
    const int32_t sum = fold_add_i32(sums);
    memcpy(row + q8t_scale_at(static_cast<size_t>(width)), &scale, 4);
    memcpy(row + q8t_sum_at(static_cast<size_t>(width)), &sum, 4);
}

// The stored code of input i of a group, for one column (linear.h has the layout). int8 comes as it is.
static int stored_code(const uint8_t* at, int bits, int64_t column, int i) {
    const int quad = i / 4;
    const size_t byte = static_cast<size_t>(4 * column + i % 4);
    if (bits == 8) return static_cast<int8_t>(at[64 * quad + byte]);
    if (bits < 4) {
        const int low = at[64 * (quad / 4) + byte] >> 2 * (quad % 4) & 3;
        return bits == 2 ? low : low | (at[128 + byte] >> quad & 1) << 2;
    }
    const int low = at[64 * (quad / 2) + byte] >> 4 * (quad % 2) & 15;
    if (bits == 4) return low;
    if (bits == 5) return low | (at[256 + byte] >> quad & 1) << 4;
    return low | (at[256 + 64 * (quad / 4) + byte] >> 2 * (quad % 4) & 3) << 4;
}

static float half_of(const uint8_t* p, int64_t column) {
    return f16_to_f32(reinterpret_cast<const uint16_t*>(p)[column]);
}

// scale * code (+ minimum) of one column in half a group: the products of f16 and small integers are exact.
struct Line {
    float scale, minimum;
};
static Line line_of(Scale kind, const uint8_t* group, const uint8_t* super, int64_t column, int half) {
    switch (kind) {
        case Scale::none: break;
        case Scale::half: return {half_of(group, column), 0};
        case Scale::half_min: return {half_of(group, column), half_of(group + 32, column)};
        case Scale::half_zero: {
            const float scale = half_of(group, column);
            return {scale, -(scale * static_cast<float>(group[32 + column]))};
        }
        case Scale::wide:
        case Scale::column: return {reinterpret_cast<const float*>(group)[column], 0};
        case Scale::power: {
            const uint8_t e = group[column];
            return {float_of(e >= 2 ? uint32_t{e - 1u} << 23 : uint32_t{0x200000u} << e), 0};
        }
        case Scale::super32: {
            const int8_t small = reinterpret_cast<const int8_t*>(group)[column];
            return {half_of(super, column) * static_cast<float>(small), 0};
        }
        case Scale::super:
            return {half_of(super, column) * static_cast<float>(group[column]),
                    -(half_of(super + 32, column) * static_cast<float>(group[16 + column]))};
        case Scale::super16: {
            const int8_t small = reinterpret_cast<const int8_t*>(group)[16 * half + column];
            return {half_of(super, column) * static_cast<float>(small), 0};
        }
        case Scale::super16_min: {
            const uint8_t small = group[16 * half + column];
            return {half_of(super, column) * static_cast<float>(small & 15),
                    -(half_of(super + 32, column) * static_cast<float>(small >> 4))};
        }
    }
    return {0, 0};
}

// `line` has no minimum of its own: a product alone, so that 0 keeps its sign.
static bool has_minimum(Scale kind) {
    return kind == Scale::half_min || kind == Scale::half_zero || kind == Scale::super || kind == Scale::super16_min;
}

static void dequantize_codes(const LinearWeight& w, const uint8_t* panel, int64_t column, float* out) {
    const FormatInfo& info = info_of(w.format);
    const MetaBytes bytes = meta_of(info.scale);
    const size_t k = static_cast<size_t>(w.k);
    const uint8_t* supers = panel + panel_code_bytes(w.format, k);
    const uint8_t* groups = supers + bytes.super * supers_of(k);
    for (size_t g = 0; g < groups_of(k); ++g) {
        const uint8_t* at = panel + g * group_code_bytes(w.format);
        for (int i = 0; i < kGroup && kGroup * g + static_cast<size_t>(i) < k; ++i) {
            const Line line = line_of(info.scale, groups + g * bytes.group, supers + g / kSuper * bytes.super, column,
                                      i / (kGroup / 2));
            const int stored = stored_code(at, info.bits, column, i);
            const float code = static_cast<float>(info.table == Table::none ? stored - info.offset
                                                                            : table_info(info.table).codes[stored]);
            out[kGroup * g + static_cast<size_t>(i)] =
                has_minimum(info.scale) ? fma1(line.scale, code, line.minimum) : line.scale * code;
        }
    }
}

void dequantize_row(const LinearWeight& weight, int64_t column, float* out) {
    const uint8_t* panel = weight.panels + static_cast<size_t>(column / kPanel) *
                                               panel_bytes(weight.format, static_cast<size_t>(weight.k));
    const int64_t lane = column % kPanel;
    if (info_of(weight.format).scale != Scale::none) return dequantize_codes(weight, panel, lane, out);
    for (int64_t k = 0; k < weight.k; ++k) {
        out[k] = weight.format == WeightFormat::f32
                     ? reinterpret_cast<const float*>(panel)[k * 16 + lane]
                     : bf16_to_f32(reinterpret_cast<const uint16_t*>(panel)[(k / 2 * 16 + lane) * 2 + k % 2]);
    }
}

}  // namespace octavo::OCTAVO_ISA_NS
