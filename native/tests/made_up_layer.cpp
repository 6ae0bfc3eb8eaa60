#include "made_up_layer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "octavo/sampler.h"
#include "octavo/team.h"

namespace octavo {

namespace {

constexpr std::int64_t kMaxLen = 700, kBlocks = 120, kExperts = 5, kChosen = 2;

// Where a block of a source has its f16 scales, and their bits: numbers of about 2 at most come of each. (Those of
// q8_0c ought to be the same in all of a row; the packer takes a row's first.)
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
    {SourceFormat::q8_0c, 0, 0x2000},
};

}  // namespace

MadeUpLayer::MadeUpLayer(const LayerSizes& z)
    : z_(z),
      kv_bytes_(kv_layer_bytes(z.kv, z.block, z.kv_heads, z.dim)),
      kv_(static_cast<std::size_t>(kv_bytes_ * kBlocks), false) {
    const std::int64_t qkv = (z.heads + 2 * z.kv_heads) * z.dim;
    const Dtype rows = std::string(z.rows) == "q8"     ? Dtype::q8
                       : std::string(z.rows) == "q8t"  ? Dtype::q8t
                       : std::string(z.rows) == "bf16" ? Dtype::bf16
                                                       : Dtype::f32;
    const int h = buffer(Dtype::f32, z.hidden, 'T'), n = buffer(rows, z.hidden, 'T'), x = buffer(Dtype::f32, qkv, 'T');
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
    spec_.kv = {{z.kv, z.block, z.kv_heads, z.dim, 1, reinterpret_cast<std::uintptr_t>(kv_.data()), kBlocks, kv_bytes_,
                 z.more ? 100 : 0}};
    activations_ = std::make_unique<Arena>(static_cast<std::size_t>(at_), false);
    spec_.arena = activations_->data();
    spec_.arena_bytes = at_;
}

std::vector<std::uint32_t> MadeUpLayer::run(const Kernels& kernels, int threads, const std::vector<int>& chunks) {
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

int MadeUpLayer::buffer(Dtype dtype, std::int64_t width, char rows, std::int64_t times) {
    spec_.buffers.push_back({dtype, width, rows, at_, times});
    at_ += static_cast<std::int64_t>(row_bytes(dtype, static_cast<std::size_t>(width))) * times *
           (rows == 'T' ? kMaxLen : 4);
    return static_cast<int>(spec_.buffers.size()) - 1;
}

double MadeUpLayer::vec(std::int64_t n, float mean) {
    arenas_.push_back(std::make_unique<Arena>(static_cast<std::size_t>(4 * n), false));
    auto* p = reinterpret_cast<float*>(arenas_.back()->data());
    for (std::int64_t i = 0; i < n; i++) p[i] = mean == 0 ? random_() : std::max(mean + random_(), 0.25f);
    spec_.weights.push_back({"vec", n, 1, reinterpret_cast<std::uintptr_t>(p)});
    return double(spec_.weights.size() - 1);
}

double MadeUpLayer::matrix(std::int64_t n, std::int64_t k, std::int64_t experts) {
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

void MadeUpLayer::fill(std::vector<std::uint8_t>& source) {
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

void MadeUpLayer::op(const char* kind, const std::vector<std::vector<double>>& parts) {
    OpSpec o{kind, {}};
    for (const auto& p : parts) o.fields.insert(o.fields.end(), p.begin(), p.end());
    spec_.ops.push_back(o);
}

}  // namespace octavo
