// Tokens from logits (docs/numerics.md, "Sampling"): a slot's parameters are columns; a row costs O(vocabulary).
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "octavo/executable.h"

namespace octavo {

// Per slot. Neutral values: temperature 1, top_k 0, top_p 1, min_p 0, penalties 0, 0 and 1.
struct Columns {
    std::vector<float> temperature, top_p, min_p, presence, frequency, repetition;
    std::vector<std::int32_t> top_k, num_prompt, min_tokens;
    std::vector<std::uint64_t> seed;
};

class Sampler {
public:
    explicit Sampler(std::shared_ptr<Executable> exe);

    // Samples every logit row of the step that `forward` left; the token of a sequence's last row is appended to
    // `tokens` behind that row's position.
    void sample(std::int64_t num_seqs);

    void set_bias(std::int64_t slot, std::vector<std::int32_t> ids, std::vector<float> values);
    void set_stops(std::int64_t slot, std::vector<std::int32_t> ids);

    struct Logprobs {
        double chosen;
        std::int64_t rank;  // 1 = the most likely; ties to the lower id
        std::vector<std::int32_t> ids;
        std::vector<double> values;
    };
    // Of the raw logits of a row of the step at hand: the target's, and the `top` most likely.
    Logprobs logprobs(std::int64_t row, std::int32_t target, std::int32_t top);

    // Ids that top_p has sorted since the object was made: tests hold a row to a few hundred.
    std::int64_t num_sorted() const;

    Columns& columns() { return columns_; }
    std::vector<std::int32_t>& sampled() { return sampled_; }
    std::vector<std::uint8_t>& finite() { return finite_; }

private:
    // A thread's working memory, [vocab] where it is needed at all.
    struct Work {
        std::vector<float> logits, weights, sums;
        std::vector<std::int32_t> counts, members;
        std::vector<std::uint32_t> buckets;
        std::vector<double> mass;
        std::int64_t sorted = 0;
    };
    struct Row {
        std::int64_t slot;
        const std::int32_t* known;  // tokens up to and with this row's own
        std::int64_t length;        // how many
    };
    void sample_row(std::int64_t row, Work& work);
    const float* adjust(const Row& row, const float* logits, Work& work);
    void penalize(const Row& row, Work& work);
    void keep_top_k(const float* logits, std::int64_t k, Work& work);
    void keep_top_p(double share, Work& work);
    std::int32_t draw(const Row& row, Work& work);
    double total_of(const Work& work) const;

    std::shared_ptr<Executable> exe_;
    std::int64_t vocab_;
    Columns columns_;
    std::vector<std::vector<std::pair<std::int32_t, float>>> bias_;
    std::vector<std::vector<std::int32_t>> stops_;
    std::vector<std::int32_t> sampled_;
    std::vector<std::uint8_t> finite_;
    std::vector<Work> work_;
};

}  // namespace octavo
