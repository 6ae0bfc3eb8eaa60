// Emulated AVX-512 linears against scalar, bit for bit. Built and run by tests/ops/test_linear.py.
#include <immintrin.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "octavo/linear.h"

using namespace octavo;

namespace {

using Linear = void (*)(const LinearTask&);
using Quantize = void (*)(const float*, int64_t, uint8_t*);

struct Buffer {
    explicit Buffer(size_t bytes) : store(bytes + kAlign) {}
    uint8_t* data() {
        const uintptr_t address = reinterpret_cast<uintptr_t>(store.data());
        return store.data() + (round_up(address, kAlign) - address);
    }
    std::vector<uint8_t> store;
};

// Random codes; halves and floats of moderate size wherever scales or numbers lie.
void fill_weight(WeightFormat format, size_t n, size_t k, uint8_t* at, std::mt19937& random) {
    for (size_t panel = 0; panel < panels_of(n); ++panel, at += panel_bytes(format, k)) {
        const size_t codes = panel_code_bytes(format, k);
        for (size_t i = 0; i < panel_bytes(format, k); i += 2) {
            uint16_t half = static_cast<uint16_t>(random());
            if (i >= codes) half = static_cast<uint16_t>((half & 0x83ff) | 0x2400);
            if (format == WeightFormat::bf16) half = static_cast<uint16_t>((half & 0x80ff) | 0x3e00);
            memcpy(at + i, &half, 2);
        }
        if (format != WeightFormat::f32) continue;
        for (size_t i = 0; i < codes; i += 4) {
            const float x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 700;
            memcpy(at + i, &x, 4);
        }
    }
}

int compare(const char* isa, Linear linear, Quantize quantize) {
    std::mt19937 random(7);
    int failures = 0;
    for (int f = 0; f < kNumFormats; ++f) {
        for (const size_t k : {33u, 64u, 100u, 576u}) {
            const WeightFormat format = static_cast<WeightFormat>(f);
            const size_t n = 53;
            const size_t rows = 27;
            const size_t stride = row_bytes(rows_for(format), k);
            Buffer weight(packed_bytes(format, n, k));
            fill_weight(format, n, k, weight.data(), random);
            Buffer x(rows * stride);
            Buffer again(rows * stride);
            std::vector<float> numbers(k);
            for (size_t row = 0; row < rows; ++row) {
                for (float& v : numbers) v = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 300;
                uint8_t* to = x.data() + row * stride;
                if (rows_for(format) == RowType::q8) {
                    scalar::quantize_row(numbers.data(), static_cast<int64_t>(k), to);
                    quantize(numbers.data(), static_cast<int64_t>(k), again.data() + row * stride);
                } else {
                    for (size_t i = 0; i < k; ++i) {
                        if (format == WeightFormat::f32) memcpy(to + 4 * i, &numbers[i], 4);
                        if (format == WeightFormat::bf16)
                            memcpy(to + 2 * i, reinterpret_cast<char*>(&numbers[i]) + 2, 2);
                    }
                }
            }
            if (rows_for(format) == RowType::q8 && memcmp(x.data(), again.data(), rows * stride) != 0) {
                printf("%s quantize_row differs at width %zu\n", isa, k), ++failures;
            }
            Buffer scratch(linear_scratch_bytes(format, k));
            const size_t out = row_bytes(RowType::f32, n);
            Buffer want(rows * out);
            LinearTask task{{format, static_cast<int64_t>(n), static_cast<int64_t>(k), weight.data()},
                            x.data(),
                            stride,
                            want.data(),
                            out,
                            RowType::f32,
                            false,
                            nullptr,
                            1.0f,
                            0,
                            static_cast<int64_t>(rows),
                            0,
                            static_cast<int64_t>(panels_of(n)),
                            scratch.data()};
            scalar::linear_panels(task);
            for (const size_t m : {1u, 2u, 5u, 6u, 7u, 12u, 13u, 27u}) {
                Buffer got(rows * out);
                task.out = got.data();
                task.row1 = static_cast<int64_t>(m);
                linear(task);
                if (memcmp(want.data(), got.data(), m * out) != 0) {
                    printf("%s format %s k %zu rows %zu differ\n", isa, info_of(format).name, k, m), ++failures;
                }
            }
        }
    }
    return failures;
}

}  // namespace

int main() {
    _mm_setcsr(_mm_getcsr() | 0x8040);  // flush denormals, as a Team does
    return compare("avx512vnni", avx512vnni::linear_panels, avx512vnni::quantize_row) +
                       compare("avx512bf16", avx512bf16::linear_panels, avx512bf16::quantize_row) ==
                   0
               ? 0
               : 1;
}
