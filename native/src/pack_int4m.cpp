// The 4-bit quantiser with a minimum (pack_convert.h).
#include <initializer_list>

#include "pack_convert.h"

namespace octavo::convert {
namespace {

constexpr int kRefits = 3;

struct Fit {
    uint8_t codes[kGroup];
    uint16_t scale, minimum;
    double error;
};

// Codes of x under f16 scale and minimum, and the squared error they leave.
Fit round_codes(const float* x, int count, float scale, float minimum) {
    Fit fit{};
    fit.scale = to_f16(scale);
    fit.minimum = to_f16(minimum);
    const float s = from_f16(fit.scale);
    const float m = from_f16(fit.minimum);
    const float inverse = s > 0 ? 1 / s : 0;
    for (int i = 0; i < count; ++i) {
        const int code = nearest((x[i] - m) * inverse, 0, 15);
        const float difference = x[i] - (s * static_cast<float>(code) + m);
        fit.codes[i] = static_cast<uint8_t>(code);
        fit.error += static_cast<double>(difference) * static_cast<double>(difference);
    }
    return fit;
}

// Scale and minimum that fit given codes best; false where the codes are all equal.
bool least_squares(const float* x, int count, const uint8_t* codes, float* scale, float* minimum) {
    double sum_x = 0;
    double sum_c = 0;
    double sum_cc = 0;
    double sum_cx = 0;
    for (int i = 0; i < count; ++i) {
        const double c = codes[i];
        const double v = static_cast<double>(x[i]);
        sum_x += v, sum_c += c, sum_cc += c * c, sum_cx += c * v;
    }
    const double determinant = count * sum_cc - sum_c * sum_c;
    if (determinant <= 0) return false;
    const double slope = (count * sum_cx - sum_c * sum_x) / determinant;
    if (slope <= 0) return false;
    *scale = static_cast<float>(slope);
    *minimum = static_cast<float>((sum_x - slope * sum_c) / count);
    return true;
}

}  // namespace

void quantize_int4m(const float* x, int count, uint8_t* codes, uint16_t* scale, uint16_t* minimum) {
    float low = x[0];
    float high = x[0];
    for (int i = 1; i < count; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    Fit best = round_codes(x, count, (high - low) / 15, low);
    for (const float keep : {1.0f, 0.93f, 0.86f}) {
        const float cut = (high - low) * (1 - keep) / 2;
        float s = (high - low) * keep / 15;
        float m = low + cut;
        Fit fit = round_codes(x, count, s, m);
        for (int i = 0; i < kRefits && least_squares(x, count, fit.codes, &s, &m); ++i) {
            const Fit refit = round_codes(x, count, s, m);
            if (!(refit.error < fit.error)) break;
            fit = refit;
        }
        if (fit.error < best.error) best = fit;
    }
    memcpy(codes, best.codes, static_cast<size_t>(count));
    *scale = best.scale;
    *minimum = best.minimum;
}

}  // namespace octavo::convert
