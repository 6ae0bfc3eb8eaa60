#include "octavo/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "../check.h"
#include "octavo/cpu.h"

namespace octavo {
namespace {

// SplitMix64's finaliser (Steele, Lea and Flood 2014).
std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// u in [0, 1): 53 bits of a hash of (seed, position of the sampled token).
double uniform(std::uint64_t seed, std::int64_t position) {
    const std::uint64_t h = mix(mix(seed) + 0x9E3779B97F4A7C15u * (static_cast<std::uint64_t>(position) + 1));
    return static_cast<double>(h >> 11) * 0x1p-53;
}

// Natural logarithm of a positive normal number, in basic operations only: ln(m) by atanh on m in [sqrt(1/2), sqrt(2)).
double natural_log(double x) {
    std::uint64_t u = std::bit_cast<std::uint64_t>(x);
    int exponent = static_cast<int>((u >> 52) & 0x7ff) - 1023;
    double m = std::bit_cast<double>((u & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double sum = 0.0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
    return 2.0 * s * sum + exponent * 0.69314718055994530942;
}

// Larger floats have larger keys.
std::uint32_t order_key(float x) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

constexpr int kBucketBits = 12;
constexpr std::size_t kBuckets = std::size_t{1} << kBucketBits;
constexpr std::size_t kFew = 256;  // ids that are sorted without more ado

}  // namespace

Sampler::Sampler(std::shared_ptr<Executable> exe) : exe_(std::move(exe)), vocab_(exe_->vocab()) {
    const auto slots = static_cast<std::size_t>(exe_->limits().max_seqs),
               rows = static_cast<std::size_t>(exe_->limits().max_rows);
    columns_.temperature.assign(slots, 1.0f);
    columns_.top_p.assign(slots, 1.0f);
    columns_.min_p.assign(slots, 0.0f);
    columns_.presence.assign(slots, 0.0f);
    columns_.frequency.assign(slots, 0.0f);
    columns_.repetition.assign(slots, 1.0f);
    for (auto* column : {&columns_.top_k, &columns_.num_prompt, &columns_.min_tokens}) column->assign(slots, 0);
    columns_.seed.assign(slots, 0);
    bias_.resize(slots);
    stops_.resize(slots);
    sampled_.assign(rows, 0);
    finite_.assign(rows, 1);
    work_.resize(static_cast<std::size_t>(exe_->team().threads()));
}

void Sampler::set_bias(std::int64_t slot, std::vector<std::int32_t> ids, std::vector<float> values) {
    check(slot >= 0 && slot < static_cast<std::int64_t>(bias_.size()), "set_bias: slot");
    check(ids.size() == values.size(), "set_bias: as many values as ids");
    auto& list = bias_[static_cast<std::size_t>(slot)];
    list.clear();
    for (std::size_t i = 0; i < ids.size(); i++)
        if (ids[i] >= 0 && ids[i] < vocab_) list.emplace_back(ids[i], values[i]);
}

void Sampler::set_stops(std::int64_t slot, std::vector<std::int32_t> ids) {
    check(slot >= 0 && slot < static_cast<std::int64_t>(stops_.size()), "set_stops: slot");
    std::erase_if(ids, [&](std::int32_t id) { return id < 0 || id >= vocab_; });
    stops_[static_cast<std::size_t>(slot)] = std::move(ids);
}

void Sampler::sample(std::int64_t num_seqs) {
    check(num_seqs == exe_->num_seqs(), "sample: forward ran another batch");
    const std::int64_t rows = exe_->num_rows();
    check(rows == 0 || exe_->has_logits(), "sample: the spec has no head");
    if (rows == 1) {
        FlushDenormals flush;
        sample_row(0, work_[0]);
    } else if (rows > 1) {
        exe_->team().parallel_for(rows, 1, [&](std::int64_t first, std::int64_t last, int thread) {
            for (std::int64_t row = first; row < last; row++) sample_row(row, work_[static_cast<std::size_t>(thread)]);
        });
    }
    const auto& seq = exe_->row_seq();
    for (std::int64_t row = 0; row < rows; row++) {
        const auto r = static_cast<std::size_t>(row);
        if (row + 1 < rows && seq[r + 1] == seq[r]) continue;
        const auto b = static_cast<std::size_t>(seq[r]);
        const std::int64_t position = exe_->row_position(row) + 1;
        if (position < exe_->limits().max_len)
            exe_->tokens()[exe_->inputs().slot[b] * exe_->limits().max_len + position] = sampled_[r];
    }
}

void Sampler::sample_row(std::int64_t index, Work& work) {
    const auto r = static_cast<std::size_t>(index);
    const auto b = static_cast<std::size_t>(exe_->row_seq()[r]);
    const std::int64_t slot = exe_->inputs().slot[b];
    const auto s = static_cast<std::size_t>(slot);
    const Row row{slot, exe_->tokens() + slot * exe_->limits().max_len, exe_->row_position(index) + 1};
    const float* logits = exe_->logits(index);
    const LogitScan raw = exe_->kernels().scan_logits(logits, vocab_);
    finite_[r] = raw.finite;
    sampled_[r] = raw.argmax;
    if (!raw.finite) return;
    const float* x = adjust(row, logits, work);
    const LogitScan scan = x == logits ? raw : exe_->kernels().scan_logits(x, vocab_);
    sampled_[r] = scan.argmax;
    const float temperature = columns_.temperature[s], top = scan.max / temperature;
    // Greedy too where that is not finite: every id is forbidden, or it is so cold that x / t says nothing any more.
    if (!(temperature > 0.0f) || !(std::abs(top) < std::numeric_limits<float>::infinity())) return;
    const std::int64_t pieces = (vocab_ + kVocabPiece - 1) / kVocabPiece;
    work.weights.resize(static_cast<std::size_t>(vocab_));
    work.sums.resize(static_cast<std::size_t>(pieces));
    exe_->kernels().exp_logits(x, vocab_, temperature, top, work.weights.data(), work.sums.data());
    bool dropped = false;
    const std::int64_t k = columns_.top_k[s];
    if (k > 0 && k < vocab_) {
        keep_top_k(x, k, work);
        dropped = true;
    }
    if (columns_.top_p[s] < 1.0f) {
        if (dropped) exe_->kernels().sum_pieces(work.weights.data(), vocab_, work.sums.data());
        keep_top_p(static_cast<double>(columns_.top_p[s]), work);
        dropped = true;
    }
    if (columns_.min_p[s] > 0.0f) {
        const float least = columns_.min_p[s];  // of the most likely, whose weight is 1
        for (float& e : work.weights) e = e >= least ? e : 0.0f;
        dropped = true;
    }
    if (dropped) exe_->kernels().sum_pieces(work.weights.data(), vocab_, work.sums.data());
    sampled_[r] = draw(row, work);
}

// The logits with bias, penalties and min_tokens applied: a copy where anything is off neutral.
const float* Sampler::adjust(const Row& row, const float* logits, Work& work) {
    const auto s = static_cast<std::size_t>(row.slot);
    const bool early = row.length - columns_.num_prompt[s] < columns_.min_tokens[s] && !stops_[s].empty();
    const bool penalties =
        columns_.repetition[s] != 1.0f || columns_.presence[s] != 0.0f || columns_.frequency[s] != 0.0f;
    if (bias_[s].empty() && !penalties && !early) return logits;
    work.logits.assign(logits, logits + vocab_);
    for (const auto& [id, value] : bias_[s]) work.logits[static_cast<std::size_t>(id)] += value;
    if (penalties) penalize(row, work);
    if (early)
        for (std::int32_t id : stops_[s])
            work.logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    return work.logits.data();
}

// Counts come from the tokens themselves, so they are right after a preemption too. O(length), not O(vocabulary).
void Sampler::penalize(const Row& row, Work& work) {
    const auto s = static_cast<std::size_t>(row.slot);
    const float repetition = columns_.repetition[s], presence = columns_.presence[s], frequency = columns_.frequency[s];
    work.counts.resize(static_cast<std::size_t>(vocab_), 0);  // all 0 between rows
    work.members.clear();
    constexpr std::int32_t kSeen = 1 << 30;
    for (std::int64_t i = 0; i < row.length; i++) {
        const std::int32_t id = row.known[i];
        if (id < 0 || id >= vocab_) continue;
        std::int32_t& count = work.counts[static_cast<std::size_t>(id)];
        if (count == 0) {
            count = kSeen;
            work.members.push_back(id);
        }
        if (i >= columns_.num_prompt[s]) count++;
    }
    for (std::int32_t id : work.members) {
        float& x = work.logits[static_cast<std::size_t>(id)];
        std::int32_t& seen = work.counts[static_cast<std::size_t>(id)];
        const std::int32_t count = seen - kSeen;
        seen = 0;
        if (repetition != 1.0f) x = x > 0.0f ? x / repetition : x * repetition;
        if (count > 0) x -= frequency * static_cast<float>(count) + presence;
    }
}

// Zeroes the weights of all but the k largest logits, ties to the lower id: a histogram finds the border's bucket, and
// only its members are looked at closely.
void Sampler::keep_top_k(const float* logits, std::int64_t k, Work& work) {
    constexpr int kShift = 32 - kBucketBits;
    work.buckets.assign(kBuckets, 0);
    for (std::int64_t i = 0; i < vocab_; i++) work.buckets[order_key(logits[i]) >> kShift]++;
    std::size_t border = kBuckets;
    std::int64_t above = 0;
    while (above + work.buckets[border - 1] < k) above += work.buckets[--border];
    border--;
    work.members.clear();
    for (std::int64_t i = 0; i < vocab_; i++) {
        const std::size_t bucket = order_key(logits[i]) >> kShift;
        if (bucket < border) work.weights[static_cast<std::size_t>(i)] = 0.0f;
        if (bucket == border) work.members.push_back(static_cast<std::int32_t>(i));
    }
    const auto better = [&](std::int32_t a, std::int32_t b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    };
    const auto first_out = work.members.begin() + static_cast<std::ptrdiff_t>(k - above);
    std::nth_element(work.members.begin(), first_out, work.members.end(), better);
    for (auto it = first_out; it != work.members.end(); ++it) work.weights[static_cast<std::size_t>(*it)] = 0.0f;
}

// Keeps the most likely ids as long as what comes before an id is less than share of the total; ties to the lower id.
//
// A histogram of masses by the weights' upper bits finds the bucket in which the share is reached, one of its members
// by their next bits narrows that down, until they are few or all equal: O(vocabulary), however flat the weights.
//
// The order of a sum does not matter where it is exact in binary64: while vocab / (1 - share) is at most 2^29.
void Sampler::keep_top_p(double share, Work& work) {
    const auto key_of = [&](std::int32_t id) {
        return std::bit_cast<std::uint32_t>(work.weights[static_cast<std::size_t>(id)]);
    };
    int shift = 30 - kBucketBits + 1;  // weights are in [0, 1]: bits up to 0x3f800000
    std::uint32_t mask = ~std::uint32_t{0};
    const auto bucket_of = [&](std::int32_t id) {
        return std::min<std::size_t>((key_of(id) & mask) >> shift, kBuckets - 1);
    };
    const double target = share * total_of(work);
    double before = 0.0;
    const auto find_border = [&](std::int64_t count, auto id_at) {
        work.mass.assign(kBuckets, 0.0);
        for (std::int64_t i = 0; i < count; i++)
            work.mass[bucket_of(id_at(i))] += static_cast<double>(work.weights[static_cast<std::size_t>(id_at(i))]);
        std::size_t border = kBuckets - 1;
        while (border > 0 && before + work.mass[border] < target) before += work.mass[border--];
        return border;
    };
    const auto lies_in = [&](std::size_t border, std::int32_t id) {
        const std::size_t bucket = bucket_of(id);
        if (bucket < border) work.weights[static_cast<std::size_t>(id)] = 0.0f;
        return bucket == border;
    };
    std::size_t border = find_border(vocab_, [](std::int64_t i) { return static_cast<std::int32_t>(i); });
    work.members.clear();
    for (std::int32_t id = 0; id < vocab_; id++)
        if (lies_in(border, id)) work.members.push_back(id);
    while (work.members.size() > kFew && shift > 0) {
        mask = (std::uint32_t{1} << shift) - 1;
        shift = std::max(shift - kBucketBits, 0);
        border = find_border(static_cast<std::int64_t>(work.members.size()),
                             [&](std::int64_t i) { return work.members[static_cast<std::size_t>(i)]; });
        std::erase_if(work.members, [&](std::int32_t id) { return !lies_in(border, id); });
    }
    // With no bits left to tell them apart they are equal, and in the order of their ids.
    if (shift > 0 || work.members.size() <= kFew) {
        const auto better = [&](std::int32_t a, std::int32_t b) {
            return key_of(a) > key_of(b) || (key_of(a) == key_of(b) && a < b);
        };
        std::sort(work.members.begin(), work.members.end(), better);
        work.sorted += static_cast<std::int64_t>(work.members.size());
    }
    for (const std::int32_t id : work.members) {
        float& e = work.weights[static_cast<std::size_t>(id)];
        const bool kept = before < target;
        before += static_cast<double>(e);
        if (!kept) e = 0.0f;
    }
}

std::int64_t Sampler::num_sorted() const {
    std::int64_t sum = 0;
    for (const Work& work : work_) sum += work.sorted;
    return sum;
}

double Sampler::total_of(const Work& work) const {
    double total = 0.0;
    for (float sum : work.sums) total += static_cast<double>(sum);
    return total;
}

// The first id at which the running sum exceeds u * total: pieces first, then ids within the piece.
std::int32_t Sampler::draw(const Row& row, Work& work) {
    const double target = uniform(columns_.seed[static_cast<std::size_t>(row.slot)], row.length) * total_of(work);
    double running = 0.0;
    std::int32_t last = 0;  // the last id with any weight, where rounding leaves the target unreached
    for (std::size_t piece = 0; piece < work.sums.size(); piece++) {
        const double after = running + static_cast<double>(work.sums[piece]);
        const bool here = after > target;
        if (here || work.sums[piece] > 0.0f) {
            const std::int64_t first = static_cast<std::int64_t>(piece) * kVocabPiece,
                               end = std::min(vocab_, first + kVocabPiece);
            double inside = running;
            for (std::int64_t i = first; i < end; i++) {
                const float e = work.weights[static_cast<std::size_t>(i)];
                if (e == 0.0f) continue;
                last = static_cast<std::int32_t>(i);
                inside += static_cast<double>(e);
                if (here && inside > target) return last;
            }
            if (here) return last;
        }
        running = after;
    }
    return last;
}

Sampler::Logprobs Sampler::logprobs(std::int64_t row, std::int32_t target, std::int32_t top) {
    check(row >= 0 && row < exe_->num_rows(), "logprobs: row");
    check(target >= 0 && target < vocab_ && top >= 0 && top <= vocab_, "logprobs: target or top");
    check(exe_->has_logits(), "logprobs: the spec has no head");
    FlushDenormals flush;
    Work& work = work_[0];
    const float* x = exe_->logits(row);
    work.weights.resize(static_cast<std::size_t>(vocab_));
    work.sums.resize(static_cast<std::size_t>((vocab_ + kVocabPiece - 1) / kVocabPiece));
    const LogitScan scan = exe_->kernels().scan_logits(x, vocab_);
    exe_->kernels().exp_logits(x, vocab_, 1.0f, scan.max, work.weights.data(), work.sums.data());
    const double log_total = natural_log(total_of(work));
    const auto logprob = [&](std::int32_t id) {
        return static_cast<double>(x[id]) - static_cast<double>(scan.max) - log_total;
    };
    Logprobs out{logprob(target), 1, {}, {}};
    const float mine = x[target];
    std::int64_t above = 0, ties = 0;
    for (std::int64_t i = 0; i < vocab_; i++) above += x[i] > mine;
    for (std::int64_t i = 0; i < target; i++) ties += x[i] == mine;
    out.rank += above + ties;
    // The best so far, best first; few enough that insertion is cheapest.
    for (std::int32_t i = 0; top > 0 && i < vocab_; i++) {
        if (out.ids.size() == static_cast<std::size_t>(top) && !(x[i] > x[out.ids.back()])) continue;
        if (out.ids.size() == static_cast<std::size_t>(top)) out.ids.pop_back();
        const auto at = std::find_if(out.ids.begin(), out.ids.end(), [&](std::int32_t id) { return x[i] > x[id]; });
        out.ids.insert(at, i);
    }
    for (std::int32_t id : out.ids) out.values.push_back(logprob(id));
    return out;
}

}  // namespace octavo
