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
    {"int8", 140, 0x3c7a8ce829b38595u},
    {"int4m", 140, 0x7fcfd9ef75484d72u},
    {"int4", 140, 0x096a913ebf5dbb8bu},
    {"int8f", 140, 0x6fe62923addb3f7eu},
    {"int8t", 140, 0x79cb63ad83523db6u},
    {"int4n", 140, 0xed02af2626e8c196u},
    {"int4x", 140, 0x5d6a808a78ce6c83u},
    {"int4e", 140, 0x753d70b4996b57a9u},
    {"int4z", 140, 0xa4618641575f1df2u},
    {"int4k", 140, 0x7b44ba0c9f3acdd4u},
    {"int5", 140, 0x96acaf839b4a388bu},
    {"int5m", 140, 0xc2ebbb73fd2f8450u},
    {"int5k", 140, 0x8262ddda6f507140u},
    {"int6k", 140, 0xe0ad1e65e9142bfcu},
    {"int3k", 140, 0x3640d71ccc4c04c9u},
    {"int2k", 140, 0x226a0a8d8ff850fcu},
    {"int4m with more", 140, 0x1b1f8c169f745254u},
    {"bf16 with more", 140, 0x041709e32cb70e7du},
    {"f32 with more", 140, 0x3f77d3c7071dd4d9u},
    // unless told otherwise
    {"f32", 560, 0x21f96600d39c49c7u},
    {"bf16", 560, 0x17f1dded3376f39bu},
    {"int8", 560, 0x700e6f7fdad5b517u},
    {"int4m", 560, 0x21b3a2bb5fcbaf5eu},
    {"int4", 560, 0xe50e9b330be027d4u},
    {"int8f", 560, 0x54b5681d3b180ea2u},
    {"int8t", 560, 0x51ddd95520bcf9b4u},
    {"int4n", 560, 0x36d87d5ae9765fc3u},
    {"int4x", 560, 0x792ae155d0d8e79du},
    {"int4e", 560, 0x963539c7ac5f1176u},
    {"int4z", 560, 0x35ead552ab408b06u},
    {"int4k", 560, 0xd7b3b36b301b79d1u},
    {"int5", 560, 0x2182f85973f33e68u},
    {"int5m", 560, 0xcaa3374c33ac71c9u},
    {"int5k", 560, 0x02e151e285429381u},
    {"int6k", 560, 0x7e0a6d0c54602148u},
    {"int3k", 560, 0x3cdfd4f6d941c8c6u},
    {"int2k", 560, 0x844ed9141d0588f5u},
    {"int4m with more", 560, 0x70cc31b6ba7d9dc9u},
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
