// See rope.h.
#include "octavo/rope.h"

namespace octavo {
namespace {

// pi / 2 in three pieces; n times the first two is exact for n below 2^20.
constexpr double kP1 = 0x1.921fb54400000p+0, kP2 = 0x1.0b4611a600000p-34, kP3 = 0x1.3198a2e037073p-69;
constexpr double kPi = 0x1.921fb54442d18p+1;
constexpr double kSin[] = {-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
                           -1.0 / 5040,          1.0 / 120,        -1.0 / 6};
constexpr double kCos[] = {-1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
                           -1.0 / 720,         1.0 / 24,        -1.0 / 2};
constexpr int kTerms = 7;
constexpr double kRound = 0x1.8p52;  // added and taken away: the nearest integer, ties to even

}  // namespace

void rope_rows(const double* frequencies, int64_t width, double attention, int64_t first, int64_t last, float* cosines,
               float* sines) {
    for (int64_t position = first; position < last; ++position) {
        const int64_t row = position * width;
        for (int64_t i = 0; i < width; ++i) {
            const double x = static_cast<double>(position) * frequencies[i];
            const double n = (x * (2 / kPi) + kRound) - kRound;
            const double r = ((x - n * kP1) - n * kP2) - n * kP3;
            const double r2 = r * r;
            double s = 0;
            double c = 0;
            for (int term = 0; term < kTerms; ++term) {
                s = (s + kSin[term]) * r2;
                c = (c + kCos[term]) * r2;
            }
            s = r + r * s;
            c = 1.0 + c;
            const int quadrant = static_cast<int>(n) & 3;
            const double sine = quadrant & 1 ? c : s;
            const double cosine = quadrant & 1 ? s : c;
            sines[row + i] = static_cast<float>((quadrant >= 2 ? -sine : sine) * attention);
            cosines[row + i] = static_cast<float>((quadrant == 1 || quadrant == 2 ? -cosine : cosine) * attention);
        }
    }
}

}  // namespace octavo
