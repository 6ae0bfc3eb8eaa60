// The op tests in C++, for sanitizers, emulated CPUs and cross builds: a small transformer layer with awkward sizes,
// its feed-forward once dense and once a mixture of experts, in each format of weights (linear.h), and in three with
// all that a layer and a sampler can have. It runs whole and in chunks, on one thread and three, on every variant that
// this CPU has. Everything must give scalar's bits, and scalar the bits written down here: the same on every machine
// and from every compiler.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checks.h"
#include "octavo/arena.h"
#include "octavo/cpu.h"
#include "octavo/executable.h"
#include "octavo/homes.h"
#include "octavo/pack.h"
#include "octavo/sampler.h"
#include "octavo/team.h"

using namespace octavo;

namespace {

constexpr std::int64_t kVocab = 300, kMaxLen = 700, kBlocks = 120, kExperts = 5, kChosen = 2;

struct Random {
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

// The 64-bit FNV-1a of words, each word's low byte first.
std::uint64_t digest(const std::vector<std::uint32_t>& words) {
    std::uint64_t sum = 0xcbf29ce484222325u;
    for (const std::uint32_t word : words)
        for (int shift = 0; shift < 32; shift += 8) sum = (sum ^ (word >> shift & 0xff)) * 0x100000001b3u;
    return sum;
}

// What scalar must give. Numbers change only with the arithmetic (docs/numerics.md) or with this file's model.
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

// Whether the logits, and tokens behind them, are those written down; true at positions of which none are.
bool check_golden(const std::string& name, int positions, const std::vector<std::uint32_t>& words) {
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

struct Sizes {
    const char* format;
    SourceFormat source;  // what its weights are packed from: f32, or blocks (kHalves)
    const char* rows;     // the dtype its linears read
    Dtype kv;
    std::int64_t hidden, inner, heads, kv_heads, dim, block;
    // Also a window, a cap of scores, norms of q and k, a balance of keys held in codes, and every sampling parameter.
    bool more = false;

    std::string name() const { return more ? std::string(format) + " with more" : format; }
};

// Where a block of a source has its f16 scales, and their bits: numbers of about 2 at most come of each.
struct Halves {
    SourceFormat source;
    std::int64_t at;
    unsigned least;
};
constexpr Halves kHalves[] = {
    {SourceFormat::q4_1, 0, 0x3000},   {SourceFormat::q4_1, 2, 0xbc00},   {SourceFormat::q8_0, 0, 0x2000},
    {SourceFormat::q4_0, 0, 0x3000},   {SourceFormat::q5_0, 0, 0x2c00},   {SourceFormat::q5_1, 0, 0x2c00},
    {SourceFormat::q5_1, 2, 0xbc00},   {SourceFormat::z4, 0, 0x3000},     {SourceFormat::q4_k, 0, 0x1800},
    {SourceFormat::q4_k, 2, 0x2000},   {SourceFormat::q5_k, 0, 0x1400},   {SourceFormat::q5_k, 2, 0x2000},
    {SourceFormat::q6_k, 208, 0x1000}, {SourceFormat::q3_k, 108, 0x2400}, {SourceFormat::q2_k, 80, 0x2800},
    {SourceFormat::q2_k, 82, 0x2c00},  {SourceFormat::iq4_nl, 0, 0x2000}, {SourceFormat::iq4_xs, 0, 0x1000},
};

// One layer over arenas of its own.
class Model {
public:
    explicit Model(const Sizes& z)
        : z_(z),
          kv_bytes_(kv_layer_bytes(z.kv, z.block, z.kv_heads, z.dim)),
          kv_(static_cast<std::size_t>(kv_bytes_ * kBlocks), false) {
        const std::int64_t qkv = (z.heads + 2 * z.kv_heads) * z.dim;
        const Dtype rows = std::string(z.rows) == "q8"     ? Dtype::q8
                           : std::string(z.rows) == "bf16" ? Dtype::bf16
                                                           : Dtype::f32;
        const int h = buffer(Dtype::f32, z.hidden, 'T'), n = buffer(rows, z.hidden, 'T'),
                  x = buffer(Dtype::f32, qkv, 'T');
        const int a = buffer(rows, z.heads * z.dim, 'T'), g = buffer(Dtype::f32, 2 * z.inner, 'T'),
                  u = buffer(rows, z.inner, 'T');
        const int last = buffer(Dtype::f32, z.hidden, 'R'), normed = buffer(rows, z.hidden, 'R'),
                  logits = buffer(Dtype::f32, kVocab, 'R');
        const double e = matrix(kVocab, z.hidden), one = vec(z.hidden), bias = vec(qkv);
        const double cos = vec(kMaxLen * z.dim / 2), sin = vec(kMaxLen * z.dim / 2);
        const double wqkv = matrix(qkv, z.hidden), wo = matrix(z.hidden, z.heads * z.dim),
                     wgu = matrix(2 * z.inner, z.hidden), wd = matrix(z.hidden, z.inner);
        const int scores = buffer(Dtype::f32, kExperts, 'T'), ids = buffer(Dtype::i32, kChosen, 'T'),
                  weights = buffer(Dtype::f32, kChosen, 'T'), sum = buffer(Dtype::f32, z.hidden, 'T');
        const int eg = buffer(Dtype::f32, 2 * z.inner, 'T', kChosen), eu = buffer(rows, z.inner, 'T', kChosen),
                  ed = buffer(Dtype::f32, z.hidden, 'T', kChosen);
        const double router = matrix(kExperts, z.hidden), experts_in = matrix(2 * z.inner, z.hidden, kExperts),
                     experts_out = matrix(z.hidden, z.inner, kExperts);
        const double qk_norm = z.more ? vec(z.dim) : -1,
                     balance = z.more && z.kv == Dtype::i8 ? vec(z.kv_heads * z.dim, 2) : -1;
        const double dim = double(z.dim), heads = double(z.heads), kvh = double(z.kv_heads), k_at = heads * dim,
                     v_at = k_at + kvh * dim;
        auto whole = [&](int b) {
            return std::vector<double>{double(b), 0, 1, double(spec_.buffers[std::size_t(b)].width),
                                       double(spec_.buffers[std::size_t(b)].width)};
        };
        auto part = [&](int b, double at, double count, double width) {
            return std::vector<double>{double(b), at, count, width, width};
        };
        op("embed", {{double(h), e}});
        op("norm", {whole(h), whole(n), {one, 1e-5, 0}});
        op("linear", {{double(n)}, whole(x), {wqkv, bias, 0, 1}});
        if (z.more) {
            op("norm", {part(x, 0, heads, dim), part(x, 0, heads, dim), {qk_norm, 1e-5, 1}});
            op("norm", {part(x, k_at, kvh, dim), part(x, k_at, kvh, dim), {qk_norm, 1e-5, 1}});
        }
        op("rope", {part(x, 0, heads + kvh, dim), part(x, 0, heads + kvh, dim), {cos, sin, dim}});
        op("kv_write", {part(x, k_at, kvh, dim), part(x, v_at, kvh, dim), {0, 0, balance}});
        op("attend", {part(x, 0, heads, dim), whole(a), {0, 0, 0.2, z.more ? 5.0 : 0.0, balance}});
        op("linear", {{double(a)}, whole(h), {wo, -1, 1, 0.7}});
        op("norm", {whole(h), whole(n), {one, 1e-5, 0}});
        op("linear", {{double(n)}, whole(g), {wgu, -1, 0, 1}});
        op("act", {part(g, 0, 1, double(z.inner)), part(g, double(z.inner), 1, double(z.inner)), whole(u), {2}});
        op("linear", {{double(u)}, whole(h), {wd, -1, 1, 0.7}});
        op("norm", {whole(h), whole(n), {one, 1e-5, 0}});
        op("linear", {{double(n)}, whole(scores), {router, -1, 0, 1}});
        op("route", {whole(scores), {double(ids), double(weights), 1, 1.5}});
        op("expert_linear", {{double(n), double(ids), double(eg), experts_in, kExperts}});
        op("act", {part(eg, 0, 1, double(z.inner)), part(eg, double(z.inner), 1, double(z.inner)), whole(eu), {0}});
        op("expert_linear", {{double(eu), double(ids), double(ed), experts_out, kExperts}});
        op("combine", {whole(ed), {double(weights)}, whole(sum)});
        op("add", {whole(h), whole(sum), whole(h), {1}});
        const auto head = static_cast<std::int64_t>(spec_.ops.size());
        op("gather", {{double(h), double(last)}});
        op("norm", {whole(last), whole(normed), {one, 1e-5, 0}});
        op("head", {{double(normed), double(logits), e}});
        op("scale", {whole(logits), whole(logits), {0.5, 30}});
        spec_.segments = {{"embed", {0, 1}}, {"layers", {1, head}}, {"head", {head, head + 4}}};
        spec_.limits = {kMaxLen, 4, 2, (kMaxLen + z.block - 1) / z.block, kMaxLen};
        spec_.vocab = kVocab;
        spec_.kv = {{z.kv, z.block, z.kv_heads, z.dim, 1, reinterpret_cast<std::uintptr_t>(kv_.data()), kBlocks,
                     kv_bytes_, z.more ? 100 : 0}};
        activations_ = std::make_unique<Arena>(static_cast<std::size_t>(at_), false);
        spec_.arena = activations_->data();
        spec_.arena_bytes = at_;
    }

    // The logits' bits after the prompt went in in chunks, then the tokens sampled from them.
    std::vector<std::uint32_t> run(const Kernels& kernels, int threads, const std::vector<int>& chunks) {
        std::memset(kv_.data(), 0xff, kv_.size());
        auto team = std::make_shared<Team>(threads);
        auto exe = std::make_shared<Executable>(team, spec_, kernels);
        Sampler sampler(exe);
        Inputs& in = exe->inputs();
        in.slot[0] = 1;
        for (std::size_t i = 0; i < in.table[0].size() && i < kBlocks - 1; i++)
            in.table[0][i] = static_cast<std::int32_t>(1 + (i * 37) % (kBlocks - 1));
        for (std::int32_t i = 0; i < kMaxLen; i++) exe->tokens()[kMaxLen + i] = (i * 7919) % kVocab;
        sampler.columns().top_k[1] = 20;
        sampler.columns().repetition[1] = 1.2f;
        if (z_.more) {
            Columns& columns = sampler.columns();
            columns.temperature[1] = 3.0f;
            columns.presence[1] = -1.0f;
            columns.frequency[1] = -2.0f;
            columns.num_prompt[1] = 70;
            columns.min_tokens[1] = kMaxLen;
            sampler.set_bias(1, {3, 7, 250}, {9.0f, 8.0f, 6.0f});
            sampler.set_stops(1, {0, 7});
        }
        std::vector<std::uint32_t> out;
        std::int32_t start = 0;
        for (int count : chunks) {
            in.count[0] = count;
            in.start[0] = start;
            in.kv_len[0] = start += count;
            in.rows[0] = 1;
            exe->forward(1);
        }
        out.resize(kVocab);
        std::memcpy(out.data(), exe->logits(0), 4 * kVocab);
        for (std::uint64_t seed = 5; seed < (z_.more ? 45u : 6u); seed++) {
            sampler.columns().seed[1] = seed;
            if (z_.more) {  // in turn, since what one of them keeps the other may keep as well
                sampler.columns().top_p[1] = seed % 2 == 0 ? 0.6f : 1.0f;
                sampler.columns().min_p[1] = seed % 2 == 0 ? 0.0f : 0.2f;
            }
            sampler.sample(1);
            out.push_back(static_cast<std::uint32_t>(sampler.sampled()[0]));
        }
        return out;
    }

private:
    int buffer(Dtype dtype, std::int64_t width, char rows, std::int64_t times = 1) {
        spec_.buffers.push_back({dtype, width, rows, at_, times});
        at_ += static_cast<std::int64_t>(row_bytes(dtype, static_cast<std::size_t>(width))) * times *
               (rows == 'T' ? kMaxLen : 4);
        return static_cast<int>(spec_.buffers.size()) - 1;
    }
    // Normal numbers around `mean`, none within 1/4 of 0 where that is not 0.
    double vec(std::int64_t n, float mean = 0) {
        arenas_.push_back(std::make_unique<Arena>(static_cast<std::size_t>(4 * n), false));
        auto* p = reinterpret_cast<float*>(arenas_.back()->data());
        for (std::int64_t i = 0; i < n; i++) p[i] = mean == 0 ? random_() : std::max(mean + random_(), 0.25f);
        spec_.weights.push_back({"vec", n, 1, reinterpret_cast<std::uintptr_t>(p)});
        return double(spec_.weights.size() - 1);
    }
    double matrix(std::int64_t n, std::int64_t k, std::int64_t experts = 1) {
        WeightFormat format = WeightFormat::f32;
        find_format(z_.format, &format);
        if (!can_pack(format, z_.source) || k % source_info(z_.source).elements != 0)
            std::printf("FAILED %s: cannot be packed\n", z_.format), std::exit(1);
        std::vector<std::uint8_t> source(static_cast<std::size_t>(n) *
                                         source_row_bytes(z_.source, static_cast<std::size_t>(k)));
        const std::size_t size = packed_bytes(format, static_cast<std::size_t>(n), static_cast<std::size_t>(k));
        arenas_.push_back(std::make_unique<Arena>(size * static_cast<std::size_t>(experts), false));
        std::uint8_t* p = arenas_.back()->data();
        for (std::int64_t e = 0; e < experts; e++) {
            fill(source);
            pack({format, z_.source, n, k, source.data(), p + static_cast<std::size_t>(e) * size, 0, n}, 1);
        }
        spec_.weights.push_back({z_.format, n, k, reinterpret_cast<std::uintptr_t>(p)});
        return double(spec_.weights.size() - 1);
    }
    // Source rows at random, numbers about as large for every source.
    void fill(std::vector<std::uint8_t>& source) {
        if (z_.source == SourceFormat::f32) {
            for (std::size_t i = 0; i < source.size(); i += 4) {
                const float x = random_();
                std::memcpy(source.data() + i, &x, 4);
            }
            return;
        }
        for (std::uint8_t& byte : source) byte = static_cast<std::uint8_t>(random_.bits() >> 16);
        const auto bytes = static_cast<std::size_t>(source_info(z_.source).bytes);
        for (std::size_t i = 0; i < source.size(); i += bytes) {
            if (z_.source == SourceFormat::z4) source[i + 2] &= 15;  // the zero, among the codes
            if (z_.source == SourceFormat::mxfp4) source[i] = static_cast<std::uint8_t>(124 + (random_.bits() >> 23));
            for (const Halves& h : kHalves) {
                if (h.source != z_.source) continue;
                // Up to twice the least, exclusive: the exponent of an f16 begins at bit 10.
                const auto scale = static_cast<std::uint16_t>(h.least + (random_.bits() >> 14));
                std::memcpy(source.data() + i + h.at, &scale, 2);
            }
        }
    }
    void op(const char* kind, const std::vector<std::vector<double>>& parts) {
        OpSpec o{kind, {}};
        for (const auto& p : parts) o.fields.insert(o.fields.end(), p.begin(), p.end());
        spec_.ops.push_back(o);
    }

    Sizes z_;
    std::int64_t kv_bytes_, at_ = 0;
    Arena kv_;
    Random random_;
    ExecutableSpec spec_{};
    std::unique_ptr<Arena> activations_;
    std::vector<std::unique_ptr<Arena>> arenas_;
};

std::vector<int> chunks_of(int total, int size) {
    std::vector<int> out;
    for (int at = 0; at < total; at += size) out.push_back(total - at < size ? total - at : size);
    return out;
}

// Each item of each work is done once, by however many threads and however late some come, turn after turn, and also
// in the turn after one that broke off.
int check_homes() {
    int failures = 0;
    for (const int threads : {1, 2, 3, 7}) {
        Team team(threads);
        Homes homes(2, threads);
        for (const std::int64_t items : {0, 1, 2, 5, 64, 1000, 5}) {
            for (const bool dealt : {false, true}) {
                std::vector<std::atomic<int>> times(static_cast<std::size_t>(items));
                std::atomic<std::int64_t> did{0};
                const bool breaks = items == 64;
                for (int turn = 0; turn < (breaks ? 2 : 1); turn++) {
                    homes.begin(1);
                    try {
                        team.run([&](int thread) {
                            if (breaks && turn == 0) throw std::runtime_error("on purpose");
                            did += homes.each(1, items, dealt, thread, [&](std::int64_t item) {
                                times[static_cast<std::size_t>(item)]++;
                                if (item % 5 == 0) sched_yield();
                            });
                        });
                    } catch (const std::runtime_error&) {
                        homes.reset();
                    }
                }
                bool once = did == items;
                for (const auto& t : times) once = once && t == 1;
                if (once) continue;
                failures++;
                std::printf("FAILED homes: %d threads, %lld items\n", threads, static_cast<long long>(items));
            }
        }
    }
    return failures;
}

}  // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const Sizes all[] = {
        {"f32", SourceFormat::f32, "f32", Dtype::f32, 60, 100, 3, 3, 20, 16},
        {"bf16", SourceFormat::f32, "bf16", Dtype::bf16, 96, 72, 4, 2, 64, 32},
        {"int8", SourceFormat::f32, "q8", Dtype::bf16, 100, 68, 9, 3, 64, 16},
        {"int4m", SourceFormat::f32, "q8", Dtype::bf16, 64, 96, 7, 1, 80, 8},
        {"int4", SourceFormat::q4_0, "q8", Dtype::i8, 64, 96, 9, 3, 64, 16},
        {"int8f", SourceFormat::q8_0, "q8", Dtype::i8, 64, 96, 8, 4, 20, 8},
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
    // Positions: across 128 and 512 unless told otherwise (an emulated CPU takes minutes for that).
    const int total = argc > 1 ? std::atoi(argv[1]) : 560;
    if (total < 8 || total > 600) return std::printf("usage: octavo_tests [positions, 8 to 600]\n"), 2;
    int failures = check_homes() + check_sampling();
    for (const FormatInfo& format : kFormats) {
        const auto has = [&](const Sizes& z) { return std::string_view(format.name) == z.format; };
        if (std::none_of(std::begin(all), std::end(all), has))
            failures++, std::printf("FAILED %s: no layer\n", format.name);
    }
    for (const Sizes& z : all) {
        Model model(z);
        const auto want = model.run(*kernels_of("scalar"), 1, {total});
        bool finite = true;
        for (std::int64_t i = 0; i < kVocab; i++)
            finite = finite && (want[static_cast<std::size_t>(i)] >> 23 & 0xff) != 0xff;
        if (!finite) failures++, std::printf("FAILED %s: not finite\n", z.name().c_str());
        // Weights that were never written would give the same bits everywhere, too.
        bool differ = false;
        for (std::size_t i = 1; i < kVocab; i++) differ = differ || want[i] != want[0];
        if (!differ) failures++, std::printf("FAILED %s: all logits are one number\n", z.name().c_str());
        auto words = want;
        if (!z.more) words.resize(kVocab);  // tokens are of interest where their parameters are
        if (!check_golden(z.name(), total, words)) failures++;
        for (const std::string& isa : usable_isas()) {
            for (const auto& [threads, size] : {std::pair{1, total}, {3, 130}, {2, 37}}) {
                auto chunks = chunks_of(total - 3, size);
                for (int i = 0; i < 3; i++) chunks.push_back(1);
                const bool same = model.run(*kernels_of(isa.c_str()), threads, chunks) == want;
                if (!same) failures++;
                std::printf("%s %s %s, %d threads, chunks of %d\n", same ? "same  " : "FAILED", z.name().c_str(),
                            isa.c_str(), threads, size);
            }
        }
    }
    for (const char* isa : {"avx2", "avx512vnni", "avx512bf16"})
        if (!isa_note(isa).empty()) std::printf("not run: %s (%s)\n", isa, isa_note(isa).c_str());
    return failures != 0;
}
