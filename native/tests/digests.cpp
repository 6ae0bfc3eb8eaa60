#include "digests.h"

#include <cstdio>
#include <string_view>

namespace {

// The 64-bit FNV-1a of words, each word's low byte first.
std::uint64_t digest(const std::vector<std::uint32_t>& words) {
    std::uint64_t sum = 0xcbf29ce484222325u;
    for (const std::uint32_t word : words)
        for (int shift = 0; shift < 32; shift += 8) sum = (sum ^ (word >> shift & 0xff)) * 0x100000001b3u;
    return sum;
}

// What scalar must give. Numbers change only with the arithmetic (docs/numerics.md) or with the made-up layer.
struct Golden {
    std::string_view name;
    int positions;
    std::uint64_t digest;
};

constexpr Golden kGolden[] = {
    // .ci/run under an emulated CPU
    {"f32", 140, 0x424f3ccb134c7040u},
    {"bf16", 140, 0x26d92d1f21a73923u},
    {"int8", 140, 0x326a142df8401f80u},
    {"int4m", 140, 0x02178724bae39bcau},
    {"int4", 140, 0x28467cd4ca383c63u},
    {"int8f", 140, 0xec2315ef8b7374bcu},
    {"int8t", 140, 0x79cb63ad83523db6u},
    {"int4n", 140, 0x5c35d1ded047765bu},
    {"int4x", 140, 0x095729b579d23aa8u},
    {"int4e", 140, 0xdc1947e7948bd257u},
    {"int4z", 140, 0x1a47660f3f155f69u},
    {"int4k", 140, 0x24c3ef7fcc38641du},
    {"int5", 140, 0x178be73dd3b7104fu},
    {"int5m", 140, 0x0d20a5c58ac742a2u},
    {"int5k", 140, 0x595a2037531f8e98u},
    {"int6k", 140, 0x7b9bc605539a44b7u},
    {"int3k", 140, 0xba9e0fd6fddbd231u},
    {"int2k", 140, 0x7c4e0db4d9659627u},
    {"int4m with more", 140, 0x1be6d1c471ff8508u},
    {"bf16 with more", 140, 0x041709e32cb70e7du},
    {"f32 with more", 140, 0x3f77d3c7071dd4d9u},
    // unless told otherwise
    {"f32", 560, 0x21f96600d39c49c7u},
    {"bf16", 560, 0x17f1dded3376f39bu},
    {"int8", 560, 0x67dcec5448d13ed6u},
    {"int4m", 560, 0x88ae7b0753afea88u},
    {"int4", 560, 0x884086972b96c617u},
    {"int8f", 560, 0xd2c51fd9108d0f83u},
    {"int8t", 560, 0x51ddd95520bcf9b4u},
    {"int4n", 560, 0x165c3c654461216cu},
    {"int4x", 560, 0xc5c4f6ceb9887589u},
    {"int4e", 560, 0xf3a0a433e715f474u},
    {"int4z", 560, 0x26b3368cd01493acu},
    {"int4k", 560, 0xa5197c97e2863389u},
    {"int5", 560, 0xb5083d45e681492du},
    {"int5m", 560, 0x01ed2ca73ce8fbbau},
    {"int5k", 560, 0x9030a80fea9cd79du},
    {"int6k", 560, 0xe6e31c07a2d5300cu},
    {"int3k", 560, 0x6cc843932fd02846u},
    {"int2k", 560, 0xaa9674b8b24a5433u},
    {"int4m with more", 560, 0xbeea66778e3b1c9bu},
    {"bf16 with more", 560, 0x9ea66eac9af4136au},
    {"f32 with more", 560, 0x615c28b975468cd0u},
};

}  // namespace

bool check_digest(const std::string& name, int positions, const std::vector<std::uint32_t>& words) {
    const std::uint64_t got = digest(words);
    for (const Golden& g : kGolden) {
        if (g.name != name || g.positions != positions) continue;
        const char* said = got == g.digest ? "same  " : "FAILED";
        std::printf("%s %s scalar, %d positions: digest %016llx, written down %016llx\n", said, name.c_str(), positions,
                    static_cast<unsigned long long>(got), static_cast<unsigned long long>(g.digest));
        return got == g.digest;
    }
    std::printf("       %s scalar, %d positions: digest %016llx, none written down\n", name.c_str(), positions,
                static_cast<unsigned long long>(got));
    return true;
}
