// A made-up layer in each format of weights (linear.h), and in three with all that a layer and a sampler can have. It
// runs whole and in chunks, on one thread and three, on every variant that this CPU has. Everything must give scalar's
// bits, and scalar those of digests.cpp.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checks.h"
#include "digests.h"
#include "made_up_layer.h"
#include "octavo/cpu.h"
#include "octavo/linear.h"

using namespace octavo;

namespace {

constexpr LayerSizes kLayers[] = {
    {"f32", SourceFormat::f32, "f32", Dtype::f32, 60, 100, 3, 3, 20, 16},
    {"bf16", SourceFormat::f32, "bf16", Dtype::bf16, 96, 72, 4, 2, 64, 32},
    {"int8", SourceFormat::f32, "q8", Dtype::bf16, 100, 68, 9, 3, 64, 16},
    {"int4m", SourceFormat::f32, "q8", Dtype::bf16, 64, 96, 7, 1, 80, 8},
    {"int4", SourceFormat::q4_0, "q8", Dtype::i8, 64, 96, 9, 3, 64, 16},
    {"int8f", SourceFormat::q8_0, "q8", Dtype::i8, 64, 96, 8, 4, 20, 8},
    {"int8t", SourceFormat::q8_0c, "q8t", Dtype::bf16, 96, 64, 9, 3, 32, 16},
    {"int4n", SourceFormat::iq4_nl, "q8", Dtype::bf16, 96, 64, 6, 2, 48, 16},
    {"int4x", SourceFormat::iq4_xs, "q8", Dtype::bf16, 256, 256, 4, 2, 64, 16},
    {"int4e", SourceFormat::mxfp4, "q8", Dtype::bf16, 64, 96, 8, 4, 20, 8},
    {"int4z", SourceFormat::z4, "q8", Dtype::bf16, 64, 96, 4, 2, 32, 16},
    {"int4k", SourceFormat::q4_k, "q8", Dtype::bf16, 256, 256, 4, 2, 64, 16},
    {"int5", SourceFormat::q5_0, "q8", Dtype::f32, 96, 64, 9, 3, 32, 16},
    {"int5m", SourceFormat::q5_1, "q8", Dtype::i8, 64, 96, 8, 2, 20, 16},
    {"int5k", SourceFormat::q5_k, "q8", Dtype::bf16, 256, 256, 8, 8, 32, 8},
    {"int6k", SourceFormat::q6_k, "q8", Dtype::bf16, 256, 256, 4, 1, 64, 32},
    {"int3k", SourceFormat::q3_k, "q8", Dtype::i8, 256, 512, 2, 1, 128, 16},
    {"int2k", SourceFormat::q2_k, "q8", Dtype::bf16, 512, 256, 4, 2, 64, 16},
    {"int4m", SourceFormat::q4_1, "q8", Dtype::i8, 64, 96, 6, 2, 48, 16, true},
    {"bf16", SourceFormat::f32, "bf16", Dtype::bf16, 40, 72, 6, 2, 20, 16, true},
    {"f32", SourceFormat::f32, "f32", Dtype::f32, 40, 72, 6, 2, 20, 8, true},
};

std::vector<int> chunks_of(int total, int size) {
    std::vector<int> out;
    for (int at = 0; at < total; at += size) out.push_back(total - at < size ? total - at : size);
    return out;
}

}  // namespace

int check_schedules(int positions) {
    int failures = 0;
    for (const FormatInfo& format : kFormats) {
        const auto has = [&](const LayerSizes& z) { return std::string_view(format.name) == z.format; };
        if (std::none_of(std::begin(kLayers), std::end(kLayers), has))
            failures++, std::printf("FAILED %s: no layer\n", format.name);
    }
    for (const LayerSizes& z : kLayers) {
        MadeUpLayer layer(z);
        const auto want = layer.run(*kernels_of("scalar"), 1, {positions});
        bool finite = true;
        for (std::int64_t i = 0; i < MadeUpLayer::kVocab; i++)
            finite = finite && (want[static_cast<std::size_t>(i)] >> 23 & 0xff) != 0xff;
        if (!finite) failures++, std::printf("FAILED %s: not finite\n", z.name().c_str());
        // Weights that were never written would give the same bits everywhere, too.
        bool differ = false;
        for (std::size_t i = 1; i < MadeUpLayer::kVocab; i++) differ = differ || want[i] != want[0];
        if (!differ) failures++, std::printf("FAILED %s: all logits are one number\n", z.name().c_str());
        auto words = want;
        if (!z.more) words.resize(MadeUpLayer::kVocab);  // tokens are of interest where their parameters are
        if (!check_digest(z.name(), positions, words)) failures++;
        for (const std::string& isa : usable_isas()) {
            for (const auto& [threads, size] : {std::pair{1, positions}, {3, 130}, {2, 37}}) {
                auto chunks = chunks_of(positions - 3, size);
                for (int i = 0; i < 3; i++) chunks.push_back(1);
                const bool same = layer.run(*kernels_of(isa.c_str()), threads, chunks) == want;
                if (!same) failures++;
                std::printf("%s %s %s, %d threads, chunks of %d\n", same ? "same  " : "FAILED", z.name().c_str(),
                            isa.c_str(), threads, size);
            }
        }
    }
    for (const char* isa : {"avx2", "avx512vnni", "avx512bf16"})
        if (!isa_note(isa).empty()) std::printf("not run: %s (%s)\n", isa, isa_note(isa).c_str());
    return failures;
}
