// From a spec to stages: every index, offset and size is checked here, once, so that a step need not.
#include <algorithm>
#include <cmath>

#include "executable_parser.h"
#include "octavo/pack.h"

namespace octavo {
namespace {

constexpr std::int64_t kMany = std::int64_t{1} << 31;  // above every index, width and count of a spec

// Before anything is allocated by them.
const Limits& checked(const Limits& l) {
    const auto within = [](std::int64_t x, int bits) { return x > 0 && x < std::int64_t{1} << bits; };
    check_spec(within(l.max_tokens, 24) && within(l.max_rows, 24) && within(l.max_seqs, 20), "limits");
    check_spec(within(l.max_len, 30) && within(l.max_blocks, 28), "limits");
    check_spec(within(l.max_seqs * l.max_len, 40) && within(l.max_seqs * l.max_blocks, 32), "limits");
    return l;
}

}  // namespace

const Executable::Parser::OpKind Executable::Parser::kOps[] = {
    {"embed", &Parser::add_embed},     {"norm", &Parser::add_norm},
    {"rope", &Parser::add_rope},       {"kv_write", &Parser::add_kv_write},
    {"act", &Parser::add_act},         {"add", &Parser::add_add},
    {"scale", &Parser::add_scale},     {"cast", &Parser::add_cast},
    {"gather", &Parser::add_gather},   {"linear", &Parser::add_linear},
    {"head", &Parser::add_head},       {"attend", &Parser::add_attend},
    {"route", &Parser::add_route},     {"expert_linear", &Parser::add_expert_linear},
    {"combine", &Parser::add_combine},
};

void Executable::Parser::parse() {
    check_sizes();
    for (std::size_t i = 0; i < spec_.ops.size(); i++) {
        op_ = &spec_.ops[i];
        next_ = 0;
        index_ = static_cast<std::int64_t>(i);
        touched_.clear();
        if (border(index_)) sorted_ids_ = -1;
        const auto* kind =
            std::find_if(std::begin(kOps), std::end(kOps), [&](const OpKind& k) { return k.name == op_->kind; });
        if (kind == std::end(kOps)) refuse_spec("op " + op_->kind + " is not native");
        (this->*kind->add)();
        check_spec(next_ == op_->fields.size(), "an op with more fields than its kind has");
    }
    find_segments();
    place_extra();
}

void Executable::Parser::check_sizes() const {
    for (const BufferSpec& b : spec_.buffers) {
        check_spec(b.width > 0 && b.width < (1 << 28) && b.offset >= 0 && b.offset % 64 == 0, "a buffer's place");
        check_spec(b.rows == 'T' || b.rows == 'R' || b.rows == 'B', "a buffer's rows");
        check_spec(b.times > 0 && b.times <= 1024, "a buffer's rows");
        const auto row = static_cast<std::int64_t>(row_bytes(b.dtype, static_cast<std::size_t>(b.width)));
        check_spec(b.offset <= spec_.arena_bytes && rows_of(b) <= (spec_.arena_bytes - b.offset) / row,
                   "a buffer beyond the arena");
    }
    for (const WeightSpec& w : spec_.weights)
        check_spec(w.n > 0 && w.n < kMany && w.k > 0 && w.k < kMany, "a weight's shape");
    for (const KvSpec& kv : spec_.kv) {
        check_spec(kv.dtype == Dtype::f32 || kv.dtype == Dtype::bf16 || kv.dtype == Dtype::i8, "KV dtype");
        check_spec(kv.block_size == 8 || kv.block_size == 16 || kv.block_size == 32 || kv.block_size == 64,
                   "block size");
        check_spec(kv.head_dim > 0 && kv.head_dim % 2 == 0 && kv.head_dim <= kMaxHead, "head_dim");
        check_spec(kv.kv_heads > 0 && kv.kv_heads < (1 << 20) && kv.layers > 0 && kv.layers < (1 << 20), "KV group");
        check_spec(kv.num_blocks > 0 && kv.num_blocks < kMany && kv.address % 64 == 0, "KV group");
        check_spec(kv.window >= 0 && kv.window < (std::int64_t{1} << 30), "window");
        const std::int64_t layer = kv_layer_bytes(kv.dtype, kv.block_size, kv.kv_heads, kv.head_dim);
        check_spec(kv.block_bytes >= kv.layers * layer, "block_bytes");
    }
    check_spec(spec_.vocab > 0 && spec_.vocab < (1 << 28), "vocab");
}

std::int64_t Executable::Parser::rows_of(char rows) const {
    return rows == 'T' ? spec_.limits.max_tokens : rows == 'R' ? spec_.limits.max_rows : spec_.limits.max_seqs;
}
std::int64_t Executable::Parser::end_of(const BufferSpec& b) const {
    return b.offset + rows_of(b) * static_cast<std::int64_t>(row_bytes(b.dtype, static_cast<std::size_t>(b.width)));
}

// -- fields -------------------------------------------------------------------------------------------------------
double Executable::Parser::number() {
    check_spec(next_ < op_->fields.size(), "an op with too few fields");
    return op_->fields[next_++];
}

std::int64_t Executable::Parser::integer() {
    const double value = number();
    check_spec(std::abs(value) < static_cast<double>(kMany) && value == std::trunc(value), "an integer of an op");
    return static_cast<std::int64_t>(value);
}

const BufferSpec& Executable::Parser::buffer(std::int64_t i) const {
    check_spec(i >= 0 && i < static_cast<std::int64_t>(spec_.buffers.size()), "a buffer index");
    return spec_.buffers[static_cast<std::size_t>(i)];
}

// A view, and the rows of its buffer in `domain_`.
View Executable::Parser::view() {
    const BufferSpec& b = touch(integer());
    const std::int64_t offset = integer(), heads = integer(), stride = integer(), width = integer();
    check_spec(offset >= 0 && heads > 0 && width > 0 && stride >= 0, "a view");
    check_spec(offset + (heads - 1) * stride + width <= b.width, "a view beyond its buffer");
    check_spec(heads == 1 || stride >= width, "a view whose heads overlap");
    return make_view(b, offset, heads, stride, width);
}
View Executable::Parser::whole() {
    const BufferSpec& b = touch(integer());
    return make_view(b, 0, 1, b.width, b.width);
}
const BufferSpec& Executable::Parser::touch(std::int64_t i) {
    const BufferSpec& b = buffer(i);
    domain_ = b.rows;
    times_ = b.times;
    touched_.push_back(i);
    return b;
}
View Executable::Parser::make_view(const BufferSpec& b, std::int64_t offset, std::int64_t heads, std::int64_t stride,
                                   std::int64_t width) const {
    const auto i32 = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
    View v;
    v.base = spec_.arena + b.offset;
    v.row_bytes = static_cast<std::int64_t>(row_bytes(b.dtype, static_cast<std::size_t>(b.width)));
    v.dtype = b.dtype;
    v.columns = i32(b.width);
    v.offset = i32(offset);
    v.heads = i32(heads);
    v.stride = i32(stride);
    v.width = i32(width);
    v.dense = heads == 1 || stride == width;
    return v;
}

const WeightSpec& Executable::Parser::weight(std::int64_t i) const {
    check_spec(i >= 0 && i < static_cast<std::int64_t>(spec_.weights.size()), "a weight index");
    return spec_.weights[static_cast<std::size_t>(i)];
}
const float* Executable::Parser::vector(std::int64_t n) {
    const WeightSpec& w = weight(integer());
    check_spec(w.format == "vec" && w.n * w.k >= n && w.address % 4 == 0, "a vector's format or length");
    return reinterpret_cast<const float*>(w.address);
}
LinearWeight Executable::Parser::matrix() {
    const WeightSpec& w = weight(integer());
    check_spec(w.address % kAlign == 0, "a matrix");
    const WeightFormat format = format_of(w.format);
    check_spec(format != WeightFormat::int8t || w.k <= kMaxTokenWidth, "int8t: sums beyond 31 bits");
    return {format, w.n, w.k, reinterpret_cast<const std::uint8_t*>(w.address)};
}
KvLayer Executable::Parser::layer(std::size_t& group) {
    const std::int64_t g = integer(), i = integer();
    check_spec(g >= 0 && g < static_cast<std::int64_t>(spec_.kv.size()), "a KV group");
    group = static_cast<std::size_t>(g);
    const KvSpec& kv = spec_.kv[group];
    check_spec(i >= 0 && i < kv.layers, "a KV layer");
    return {reinterpret_cast<std::uint8_t*>(kv.address) +
                i * kv_layer_bytes(kv.dtype, kv.block_size, kv.kv_heads, kv.head_dim),
            kv.block_bytes,
            kv.block_size * kv.kv_heads * kv.head_dim * kv_number_bytes(kv.dtype),
            kv.dtype,
            static_cast<std::int32_t>(kv.block_size),
            static_cast<std::int32_t>(kv.kv_heads),
            static_cast<std::int32_t>(kv.head_dim),
            nullptr};
}

const float* Executable::Parser::balance(const KvLayer& kv) {
    const float* found = optional_vector(std::int64_t{kv.heads} * kv.dim);
    check_spec(!found || kv.dtype == Dtype::i8, "a balance of keys that are no codes");
    return found;
}

const float* Executable::Parser::optional_vector(std::int64_t n) {
    const std::size_t at = next_;
    if (integer() < 0) return nullptr;
    next_ = at;
    return vector(n);
}

// -- stages -----------------------------------------------------------------------------------------------------------

Executable::Stage& Executable::Parser::new_stage(StageKind kind) {
    stage_buffers_.clear();
    Stage s{};
    s.kind = kind;
    s.domain = domain_;
    s.times = times_;
    s.first_op = index_;
    s.end_op = index_ + 1;
    exe_.stages_.push_back(std::move(s));
    return exe_.stages_.back();
}

bool Executable::Parser::border(std::int64_t op) const {
    return std::any_of(spec_.segments.begin(), spec_.segments.end(),
                       [&](const auto& s) { return s.second.first == op || s.second.second == op; });
}

bool Executable::Parser::disjoint(const BufferSpec& a, const BufferSpec& b) const {
    return end_of(a) <= b.offset || end_of(b) <= a.offset;
}

bool Executable::Parser::q8_fits(const View& v, std::int64_t unit) {
    if (v.dtype != Dtype::q8 && v.dtype != Dtype::q8t) return true;
    const bool row = v.offset == 0 && columns_of(v) == v.columns && unit == columns_of(v);
    return v.dense && (row || (v.dtype == Dtype::q8 && v.offset % kGroup == 0 && unit % kGroup == 0));
}

void Executable::Parser::check_q8(const View& v) {
    check_spec(q8_fits(v, columns_of(v)),
               "a q8 view that does not start and end with its groups, or a q8t one that is no whole row");
}

// A stage of our own behind an op that cannot write its buffer's dtype: f32 in memory of ours, then a cast.
View Executable::Parser::detour(const View& out, std::int64_t rows) {
    View v = out;
    v.dtype = Dtype::f32;
    v.columns = static_cast<std::int32_t>(columns_of(out));
    v.offset = 0;
    v.stride = v.width;
    v.dense = true;
    v.row_bytes = static_cast<std::int64_t>(row_bytes(Dtype::f32, static_cast<std::size_t>(v.columns)));
    v.base = nullptr;  // place_extra
    extra_bytes_ = std::max(extra_bytes_, rows * v.row_bytes);
    return v;
}

// By value: a view of the caller's may lie in the stages that grow here.
void Executable::Parser::push_cast(View from, View to) {
    RowOp cast{};
    cast.kind = RowKind::cast;
    cast.a = from;
    cast.out = to;
    new_stage(StageKind::rows).rows.push_back(cast);
    // Nothing joins it: its memory is shared by all detours.
    for (std::size_t i = 0; i < spec_.buffers.size(); i++) stage_buffers_.push_back(static_cast<std::int64_t>(i));
    widest_ = std::max({widest_, std::int64_t{from.columns}, std::int64_t{to.columns}});
}

void Executable::Parser::need_scratch(std::size_t bytes) {
    exe_.scratch_bytes_ = std::max(exe_.scratch_bytes_, static_cast<std::int64_t>(bytes));
}

// -- the whole ----------------------------------------------------------------------------------------------------
void Executable::Parser::find_segments() {
    const auto& stages = exe_.stages_;
    auto stage_at = [&](std::int64_t op) {
        std::size_t i = 0;
        while (i < stages.size() && stages[i].first_op < op) i++;
        return i;
    };
    for (const auto& [name, range] : spec_.segments) {
        check_spec(range.first >= 0 && range.first <= range.second &&
                       range.second <= static_cast<std::int64_t>(spec_.ops.size()),
                   "a segment");
        exe_.segments_[name] = {stage_at(range.first), stage_at(range.second)};
    }
    exe_.homes_ = std::make_unique<Homes>(stages.size(), exe_.team_->threads());
    exe_.done_ = std::vector<Padded<std::int64_t>>(stages.size());
}

void Executable::Parser::place_extra() {
    const std::int64_t threads = exe_.team_->threads();
    const std::int64_t row_scratch = 4 * 3 * ((widest_ + 31) / 16 * 16);
    exe_.scratch_bytes_ = (std::max(exe_.scratch_bytes_, row_scratch) + 4096 + 4095) / 4096 * 4096;
    exe_.scratch_ = std::make_unique<Arena>(static_cast<std::size_t>(exe_.scratch_bytes_ * threads));
    exe_.extra_ = std::make_unique<Arena>(static_cast<std::size_t>(extra_bytes_ + 64), extra_bytes_ > (2 << 20));
    exe_.max_partial_rows_ = 32768;
    exe_.partials_ =
        std::make_unique<Arena>(static_cast<std::size_t>(4 * exe_.max_partial_rows_ * partial_stride_), false);
    for (Stage& s : exe_.stages_) {
        s.attend.partials = reinterpret_cast<float*>(exe_.partials_->data());
        if (s.kind == StageKind::linear && s.linear.task.out == nullptr) s.linear.task.out = exe_.extra_->data();
        if (s.kind == StageKind::attend && s.attend.out.base == nullptr) s.attend.out.base = exe_.extra_->data();
        for (RowOp& op : s.rows)
            if (op.a.base == nullptr && op.kind == RowKind::cast) op.a.base = exe_.extra_->data();
    }
}

Executable::Executable(std::shared_ptr<Team> team, const ExecutableSpec& spec, const Kernels& kernels)
    : team_(std::move(team)),
      kernels_(kernels),
      limits_(checked(spec.limits)),
      vocab_(spec.vocab),
      kv_(spec.kv),
      tokens_(static_cast<std::size_t>(4 * spec.limits.max_seqs * spec.limits.max_len)) {
    const auto seqs = static_cast<std::size_t>(limits_.max_seqs);
    for (auto* field : {&inputs_.slot, &inputs_.count, &inputs_.start, &inputs_.kv_len, &inputs_.rows, &inputs_.skip})
        field->resize(seqs);
    inputs_.table.resize(kv_.size());
    for (auto& table : inputs_.table) table.resize(seqs * static_cast<std::size_t>(limits_.max_blocks));
    token_.resize(static_cast<std::size_t>(limits_.max_tokens));
    pos_.resize(token_.size());
    kv_slot_.resize(kv_.size());
    for (auto& slots : kv_slot_) slots.resize(token_.size());
    row_.resize(static_cast<std::size_t>(limits_.max_rows));
    row_seq_.resize(row_.size());
    Parser(*this, spec).parse();
}

}  // namespace octavo
