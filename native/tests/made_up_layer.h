// A small transformer layer with awkward sizes and random weights, its feed-forward once dense and once a mixture of
// experts, with all that a layer and a sampler can have where its sizes say `more`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "octavo/arena.h"
#include "octavo/executable.h"
#include "octavo/pack.h"

namespace octavo {

struct LayerSizes {
    const char* format;
    SourceFormat source;  // what its weights are packed from: f32, or blocks (kHalves, made_up_layer.cpp)
    const char* rows;     // the dtype its linears read
    Dtype kv;
    std::int64_t hidden, inner, heads, kv_heads, dim, block;
    // Also a window, a cap of scores, norms of q and k, a balance of keys held in codes, and every sampling parameter.
    bool more = false;

    std::string name() const { return more ? std::string(format) + " with more" : format; }
};

// The same numbers on every machine.
struct LayerRandom {
    std::uint64_t state = 1;
    std::uint32_t bits() {  // 24 of them
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<std::uint32_t>(state >> 40);
    }
    float operator()() {  // about normal: a sum of uniforms
        float sum = 0;
        for (int i = 0; i < 4; i++) sum += static_cast<float>(bits()) * 0x1p-24f - 0.5f;
        return 1.7f * sum;
    }
};

// One layer over arenas of its own, between an embedding and a head.
class MadeUpLayer {
public:
    static constexpr std::int64_t kVocab = 300;

    explicit MadeUpLayer(const LayerSizes& z);

    // The logits' bits (kVocab) after the prompt went in in chunks, then the tokens sampled from them.
    std::vector<std::uint32_t> run(const Kernels& kernels, int threads, const std::vector<int>& chunks);

private:
    int buffer(Dtype dtype, std::int64_t width, char rows, std::int64_t times = 1);
    // Normal numbers around `mean`, none within 1/4 of 0 where that is not 0.
    double vec(std::int64_t n, float mean = 0);
    double matrix(std::int64_t n, std::int64_t k, std::int64_t experts = 1);
    // Source rows at random, numbers about as large for every source.
    void fill(std::vector<std::uint8_t>& source);
    void op(const char* kind, const std::vector<std::vector<double>>& parts);

    LayerSizes z_;
    std::int64_t kv_bytes_, at_ = 0;
    Arena kv_;
    LayerRandom random_;
    ExecutableSpec spec_{};
    std::unique_ptr<Arena> activations_;
    std::vector<std::unique_ptr<Arena>> arenas_;
};

}  // namespace octavo
