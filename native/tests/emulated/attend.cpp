// Emulated AVX-512 attention over an int8 cache, and the writing of it, against scalar, bit for bit. Built and run by
// tests/ops/test_emulated.py.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "octavo/kernels.h"

namespace octavo {
#define OCTAVO_DECLARE(isa)                                                                                    \
    namespace isa {                                                                                            \
    void run_rows(const RowOp& op, std::int64_t first, std::int64_t last, float* scratch);                     \
    void attend_item(const AttendOp& op, const AttendItem& it, const AttendItem* then, std::uint8_t* scratch); \
    }
OCTAVO_DECLARE(scalar)
OCTAVO_DECLARE(avx512vnni)
#undef OCTAVO_DECLARE
}  // namespace octavo

using namespace octavo;

namespace {

View view_of(std::vector<float>& values, std::int32_t heads, std::int32_t dim) {
    View v{};
    v.base = reinterpret_cast<std::uint8_t*>(values.data());
    v.row_bytes = 4 * static_cast<std::int64_t>(heads * dim);
    v.dtype = Dtype::f32;
    v.columns = heads * dim;
    v.heads = heads;
    v.stride = v.width = dim;
    v.dense = true;
    return v;
}

template <class Write, class Attend>
std::vector<float> output(std::int32_t dim, std::int32_t size, std::int32_t group, Write write, Attend attend) {
    constexpr std::int32_t kLength = 150, kHeads = 2, kTokens = 5;
    std::mt19937 random(static_cast<unsigned>(dim * size));
    const auto numbers = [&](std::int32_t n) {
        std::vector<float> x(static_cast<std::size_t>(n));
        for (float& v : x) v = static_cast<float>(static_cast<int>(random() % 20001) - 10000) / 4000;
        return x;
    };
    std::vector<float> k = numbers(kLength * kHeads * dim), v = numbers(kLength * kHeads * dim);
    std::vector<float> q = numbers(kTokens * kHeads * group * dim), out(q.size());
    const std::int32_t blocks = (kLength + size - 1) / size;
    const std::int64_t bytes = kv_layer_bytes(Dtype::i8, size, kHeads, dim);
    std::vector<std::uint8_t> cache(static_cast<std::size_t>(blocks * bytes), 0xff);
    std::vector<std::int64_t> slots(kLength);
    std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
    for (std::int32_t i = 0; i < kLength; i++) slots[static_cast<std::size_t>(i)] = i;
    for (std::int32_t i = 0; i < blocks; i++) table[static_cast<std::size_t>(i)] = i;
    RowOp row{};
    row.kind = RowKind::kv_write;
    row.a = view_of(k, kHeads, dim);
    row.b = view_of(v, kHeads, dim);
    row.kv = {cache.data(), bytes, std::int64_t{size} * kHeads * dim, Dtype::i8, size, kHeads, dim};
    row.kv_slot = slots.data();
    std::vector<float> scratch(static_cast<std::size_t>(3 * (kHeads * dim + 64)));
    write(row, kLength, scratch.data());
    AttendOp op{};
    op.q = view_of(q, kHeads * group, dim);
    op.out = view_of(out, kHeads * group, dim);
    op.kv = row.kv;
    op.group = group;
    op.scale = 0.2f;
    op.window = 141;
    op.max_blocks = blocks;
    op.table = table.data();
    std::vector<std::uint8_t> memory(
        attend_scratch_bytes(static_cast<std::size_t>(dim), static_cast<std::size_t>(group)) + 64);
    auto* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    for (std::int32_t head = 0; head < kHeads; head++) {
        const AttendItem item{0, 0, kTokens, kLength - kTokens, head, 0, 1, -1, 0};
        attend(op, item, aligned);
    }
    return out;
}

}  // namespace

int main() {
    int failures = 0;
    for (const std::int32_t dim : {20, 64})
        for (const std::int32_t size : {8, 16})
            for (const std::int32_t group : {1, 3}) {
                const auto want = output(
                    dim, size, group, [](const RowOp& op, std::int64_t n, float* s) { scalar::run_rows(op, 0, n, s); },
                    [](const AttendOp& op, const AttendItem& it, std::uint8_t* s) {
                        scalar::attend_item(op, it, nullptr, s);
                    });
                const auto got = output(
                    dim, size, group,
                    [](const RowOp& op, std::int64_t n, float* s) { avx512vnni::run_rows(op, 0, n, s); },
                    [](const AttendOp& op, const AttendItem& it, std::uint8_t* s) {
                        avx512vnni::attend_item(op, it, nullptr, s);
                    });
                const bool any = want[0] != 0 && want.back() != 0;
                if (any && memcmp(want.data(), got.data(), 4 * want.size()) == 0) continue;
                failures++;
                std::printf("attend differs: dim %d, blocks of %d, group %d\n", dim, size, group);
            }
    return failures != 0;
}
