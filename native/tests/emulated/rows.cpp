// Emulated AVX-512 row ops against scalar, bit for bit. Built and run by tests/ops/test_emulated.py.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "octavo/kernels.h"

namespace octavo {
#define OCTAVO_DECLARE_ROWS(isa)                                                           \
    namespace isa {                                                                        \
    void run_rows(const RowOp& op, std::int64_t first, std::int64_t last, float* scratch); \
    }
OCTAVO_DECLARE_ROWS(scalar)
OCTAVO_DECLARE_ROWS(avx512vnni)
#undef OCTAVO_DECLARE_ROWS
}  // namespace octavo

using namespace octavo;

namespace {

constexpr int kRows = 3;

View view_of(std::vector<float>& values, std::int32_t width) {
    View v{};
    v.base = reinterpret_cast<std::uint8_t*>(values.data());
    v.row_bytes = 4 * static_cast<std::int64_t>(width);
    v.dtype = Dtype::f32;
    v.columns = v.stride = v.width = width;
    v.heads = 1;
    v.dense = true;
    return v;
}

int compare(const char* name, RowOp op, std::int32_t width) {
    std::mt19937 random(static_cast<unsigned>(width));
    const std::size_t size = static_cast<std::size_t>(kRows * width);
    std::vector<float> a(size), b(size), w(static_cast<std::size_t>(width)), want(size), got(size);
    for (auto* values : {&a, &b, &w})
        for (float& x : *values) x = static_cast<float>(static_cast<int>(random() % 200001) - 100000) / 4000;
    a[0] = 0, a[1] = -200, a[2] = 300;
    op.a = view_of(a, width);
    op.b = view_of(b, width);
    op.vector = w.data();
    std::vector<float> scratch(static_cast<std::size_t>(3 * (width + 64)));
    op.out = view_of(want, width);
    scalar::run_rows(op, 0, kRows, scratch.data());
    op.out = view_of(got, width);
    avx512vnni::run_rows(op, 0, kRows, scratch.data());
    if (memcmp(want.data(), got.data(), 4 * size) == 0) return 0;
    printf("%s differs at width %d\n", name, width);
    return 1;
}

}  // namespace

int main() {
    int failures = 0;
    for (const std::int32_t width : {16, 20, 33, 100}) {
        for (std::int32_t fn = 0; fn < 3; fn++) {
            RowOp op{};
            op.kind = RowKind::act;
            op.fn = fn;
            failures += compare("act", op, width);
        }
        RowOp norm{};
        norm.kind = RowKind::norm;
        norm.eps = 1e-6f;
        failures += compare("norm", norm, width);
        RowOp sum{};
        sum.kind = RowKind::add;
        sum.factor = 0.22f;
        failures += compare("add", sum, width);
        RowOp scale{};
        scale.kind = RowKind::scale;
        scale.factor = 0.3f;
        scale.softcap = 2.5f;
        failures += compare("scale", scale, width);
    }
    return failures != 0;
}
