// top_p costs O(vocabulary) a row: however the logits lie, hardly any of them are sorted. Tokens themselves are held to
// the reference by tests/ops/test_sample.py.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "checks.h"
#include "octavo/arena.h"
#include "octavo/executable.h"
#include "octavo/sampler.h"
#include "octavo/team.h"

using namespace octavo;

namespace {

constexpr std::int64_t kVocab = 262144;
constexpr std::int64_t kMaySort = 256;  // a row

struct Case {
    const char* name;
    float temperature;
    float (*logit)(std::uint32_t id, std::uint32_t noise);  // noise: 24 random bits
};

float fraction(std::uint32_t noise) { return static_cast<float>(noise) * 0x1p-24f; }

constexpr Case kCases[] = {
    {"as a model's", 1, [](std::uint32_t, std::uint32_t noise) { return 12 * fraction(noise); }},
    {"hot", 100, [](std::uint32_t, std::uint32_t noise) { return 12 * fraction(noise); }},
    {"nearly flat", 1, [](std::uint32_t, std::uint32_t noise) { return 1e-4f * fraction(noise); }},
    {"in order", 100, [](std::uint32_t id, std::uint32_t) { return 1e-5f * static_cast<float>(id); }},
    {"flat", 1, [](std::uint32_t, std::uint32_t) { return 3.0f; }},
    {"five numbers", 100, [](std::uint32_t, std::uint32_t noise) { return static_cast<float>(noise % 5); }},
};

}  // namespace

int check_sampling() {
    // The head reads and gives nothing but zeros: its row of logits is then written over.
    const std::int64_t column = static_cast<std::int64_t>(kAlign);
    Arena zeros(packed_bytes(WeightFormat::f32, kVocab, 1), false), buffers(2 * kAlign + 4 * kVocab, false);
    const auto address = reinterpret_cast<std::uintptr_t>(zeros.data());
    ExecutableSpec spec{};
    spec.buffers = {{Dtype::f32, 1, 'T', 0}, {Dtype::f32, 1, 'R', column}, {Dtype::f32, kVocab, 'R', 2 * column}};
    spec.weights = {{"f32", kVocab, 1, address}};
    spec.ops = {{"embed", {0, 0}}, {"gather", {0, 1}}, {"head", {1, 2, 0}}};
    spec.segments = {{"embed", {0, 1}}, {"layers", {1, 1}}, {"head", {1, 3}}};
    spec.limits = {1, 1, 1, 1, 4};
    spec.vocab = kVocab;
    spec.arena = buffers.data();
    spec.arena_bytes = static_cast<std::int64_t>(buffers.size());
    auto exe = std::make_shared<Executable>(std::make_shared<Team>(1), spec, *kernels_of("scalar"));
    Sampler sampler(exe);
    sampler.columns().top_p[0] = 0.9f;
    exe->inputs().count[0] = exe->inputs().kv_len[0] = exe->inputs().rows[0] = 1;
    exe->forward(1);
    int failures = 0;
    for (const Case& c : kCases) {
        std::uint64_t state = 1;
        for (std::uint32_t id = 0; id < kVocab; id++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            exe->logits(0)[id] = c.logit(id, static_cast<std::uint32_t>(state >> 40));
        }
        sampler.columns().temperature[0] = c.temperature;
        const std::int64_t before = sampler.num_sorted();
        sampler.sample(1);
        const std::int64_t sorted = sampler.num_sorted() - before;
        if (sorted <= kMaySort) continue;
        failures++;
        std::printf("FAILED top_p of logits %s: %lld of %lld ids sorted\n", c.name, static_cast<long long>(sorted),
                    static_cast<long long>(kVocab));
    }
    return failures;
}
