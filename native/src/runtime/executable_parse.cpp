// From a spec to stages: every index, offset and size is checked here, once, so that a step need not.
#include <algorithm>
#include <stdexcept>

#include "octavo/executable.h"

namespace octavo {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("executable spec: " + what); }

void check(bool ok, const char* what) {
    if (!ok) refuse(what);
}

bool is_row_op(const std::string& kind) {
    return kind == "embed" || kind == "norm" || kind == "rope" || kind == "kv_write" || kind == "act" ||
           kind == "add" || kind == "scale" || kind == "cast" || kind == "gather";
}

WeightFormat format_of(const std::string& name) {
    if (name == "f32") return WeightFormat::f32;
    if (name == "bf16") return WeightFormat::bf16;
    if (name == "int8") return WeightFormat::int8;
    if (name == "int4") return WeightFormat::int4;
    if (name == "int4m") return WeightFormat::int4m;
    refuse("a matrix in format " + name);
}

std::int64_t columns_of(const View& v) { return static_cast<std::int64_t>(v.heads) * v.width; }

}  // namespace

// Reads one op's fields in order.
class Executable::Parser {
public:
    Parser(Executable& exe, const ExecutableSpec& spec) : exe_(exe), spec_(spec) {}

    void parse() {
        check_sizes();
        for (std::size_t i = 0; i < spec_.ops.size(); i++) {
            op_ = &spec_.ops[i];
            next_ = 0;
            index_ = static_cast<std::int64_t>(i);
            if (is_row_op(op_->kind)) {
                add_row_op();
            } else if (op_->kind == "linear") {
                add_linear();
            } else if (op_->kind == "head") {
                add_head();
            } else if (op_->kind == "attend") {
                add_attend();
            } else {
                refuse("op " + op_->kind + " is not native");
            }
            check(next_ == op_->fields.size(), "an op with more fields than its kind has");
        }
        find_segments();
        place_extra();
    }

private:
    void check_sizes() {
        const Limits& l = spec_.limits;
        check(l.max_tokens > 0 && l.max_rows > 0 && l.max_seqs > 0 && l.max_blocks > 0 && l.max_len > 0, "limits");
        check(l.max_tokens < (1 << 24) && l.max_seqs < (1 << 20) && l.max_len < (std::int64_t{1} << 30), "limits");
        for (const BufferSpec& b : spec_.buffers) {
            check(b.width > 0 && b.width < (1 << 28) && b.offset >= 0 && b.offset % 64 == 0, "a buffer's place");
            check(b.rows == 'T' || b.rows == 'R' || b.rows == 'B', "a buffer's rows");
            check(end_of(b) <= spec_.arena_bytes, "a buffer beyond the arena");
            check(b.dtype != Dtype::i32, "an i32 buffer");
        }
        for (const KvSpec& kv : spec_.kv) {
            const std::int64_t item = kv.dtype == Dtype::f32 ? 4 : 2;
            check(kv.dtype == Dtype::f32 || kv.dtype == Dtype::bf16, "KV dtype");
            check(kv.block_size == 8 || kv.block_size == 16 || kv.block_size == 32 || kv.block_size == 64,
                  "block size");
            check(kv.head_dim > 0 && kv.head_dim % 2 == 0 && kv.head_dim <= 4096, "head_dim");
            check(kv.kv_heads > 0 && kv.layers > 0 && kv.num_blocks > 0 && kv.address % 64 == 0, "KV group");
            check(kv.block_bytes >= 2 * kv.layers * kv.block_size * kv.kv_heads * kv.head_dim * item, "block_bytes");
        }
        check(spec_.vocab > 0, "vocab");
    }

    std::int64_t rows_of(char rows) const {
        return rows == 'T' ? spec_.limits.max_tokens : rows == 'R' ? spec_.limits.max_rows : spec_.limits.max_seqs;
    }
    std::int64_t end_of(const BufferSpec& b) const {
        return b.offset +
               rows_of(b.rows) * static_cast<std::int64_t>(row_bytes(b.dtype, static_cast<std::size_t>(b.width)));
    }

    // -- fields -------------------------------------------------------------------------------------------------------
    double number() {
        check(next_ < op_->fields.size(), "an op with too few fields");
        return op_->fields[next_++];
    }
    std::int64_t integer() { return static_cast<std::int64_t>(number()); }

    const BufferSpec& buffer(std::int64_t i) {
        check(i >= 0 && i < static_cast<std::int64_t>(spec_.buffers.size()), "a buffer index");
        return spec_.buffers[static_cast<std::size_t>(i)];
    }

    // A view, and the rows of its buffer in `domain_`.
    View view() {
        const BufferSpec& b = touch(integer());
        const std::int64_t offset = integer(), heads = integer(), stride = integer(), width = integer();
        check(offset >= 0 && heads > 0 && width > 0 && stride >= 0, "a view");
        check(offset + (heads - 1) * stride + width <= b.width, "a view beyond its buffer");
        check(heads == 1 || stride >= width, "a view whose heads overlap");
        return make_view(b, offset, heads, stride, width);
    }
    View whole() {
        const BufferSpec& b = touch(integer());
        return make_view(b, 0, 1, b.width, b.width);
    }
    const BufferSpec& touch(std::int64_t i) {
        const BufferSpec& b = buffer(i);
        domain_ = b.rows;
        last_buffer_ = i;
        return b;
    }
    View make_view(const BufferSpec& b, std::int64_t offset, std::int64_t heads, std::int64_t stride,
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

    const WeightSpec& weight(std::int64_t i) {
        check(i >= 0 && i < static_cast<std::int64_t>(spec_.weights.size()), "a weight index");
        return spec_.weights[static_cast<std::size_t>(i)];
    }
    const float* vector(std::int64_t n) {
        const WeightSpec& w = weight(integer());
        check(w.format == "vec" && w.n * w.k >= n && w.address % 4 == 0, "a vector's format or length");
        return reinterpret_cast<const float*>(w.address);
    }
    LinearWeight matrix() {
        const WeightSpec& w = weight(integer());
        check(w.n > 0 && w.k > 0 && w.address % kAlign == 0, "a matrix");
        return {format_of(w.format), w.n, w.k, reinterpret_cast<const std::uint8_t*>(w.address)};
    }
    KvLayer layer(std::size_t& group) {
        const std::int64_t g = integer(), i = integer();
        check(g >= 0 && g < static_cast<std::int64_t>(spec_.kv.size()), "a KV group");
        group = static_cast<std::size_t>(g);
        const KvSpec& kv = spec_.kv[group];
        check(i >= 0 && i < kv.layers, "a KV layer");
        const std::int64_t half = kv.block_size * kv.kv_heads * kv.head_dim * (kv.dtype == Dtype::f32 ? 4 : 2);
        return {reinterpret_cast<std::uint8_t*>(kv.address) + i * 2 * half,
                kv.block_bytes,
                half,
                kv.dtype,
                static_cast<std::int32_t>(kv.block_size),
                static_cast<std::int32_t>(kv.kv_heads),
                static_cast<std::int32_t>(kv.head_dim)};
    }

    // -- ops ----------------------------------------------------------------------------------------------------------
    void add_row_op() {
        RowOp op{};
        const std::string& kind = op_->kind;
        std::vector<std::int64_t> used;
        auto note = [&] { used.push_back(last_buffer_); };
        if (kind == "embed") {
            op.kind = RowKind::embed;
            op.out = whole(), note();
            exe_.embeds_.push_back(std::make_unique<LinearWeight>(matrix()));
            op.weight = exe_.embeds_.back().get();
            check(op.weight->k == op.out.width, "embed: width");
            exe_.vocab_rows_ = op.weight->n;
            op.index = exe_.token_.data();
        } else if (kind == "norm") {
            op.kind = RowKind::norm;
            op.a = view(), note();
            op.out = view(), note();
            const std::size_t at = next_;
            next_ += 1;
            op.eps = static_cast<float>(number());
            op.per_head = integer() != 0;
            const std::size_t after = next_;
            next_ = at;
            op.vector = vector(op.per_head ? op.a.width : columns_of(op.a));
            next_ = after;
        } else if (kind == "rope") {
            op.kind = RowKind::rope;
            op.a = view(), note();
            op.out = view(), note();
            const std::size_t at = next_;
            next_ += 2;
            op.rotary = static_cast<std::int32_t>(integer());
            const std::size_t after = next_;
            next_ = at;
            check(op.rotary > 0 && op.rotary % 2 == 0 && op.rotary <= op.a.width, "rope: rotary width");
            op.cos = vector(spec_.limits.max_len * op.rotary / 2);
            op.sin = vector(spec_.limits.max_len * op.rotary / 2);
            next_ = after;
            op.index = exe_.pos_.data();
        } else if (kind == "kv_write") {
            op.kind = RowKind::kv_write;
            op.a = view(), note();
            op.b = view(), note();
            op.out = op.a;
            std::size_t group = 0;
            op.kv = layer(group);
            op.kv_slot = exe_.kv_slot_[group].data();
            check(columns_of(op.a) == std::int64_t{op.kv.heads} * op.kv.dim && columns_of(op.b) == columns_of(op.a),
                  "kv_write: width");
        } else if (kind == "act" || kind == "add") {
            op.kind = kind == "act" ? RowKind::act : RowKind::add;
            op.a = view(), note();
            op.b = view(), note();
            op.out = view(), note();
            check(columns_of(op.a) == columns_of(op.b), "act or add: widths");
            if (kind == "act") {
                op.fn = static_cast<std::int32_t>(integer());
                check(op.fn >= 0 && op.fn <= 2, "act: function");
            } else {
                op.factor = static_cast<float>(number());
            }
        } else if (kind == "scale") {
            op.kind = RowKind::scale;
            op.a = view(), note();
            op.out = view(), note();
            op.factor = static_cast<float>(number());
            op.softcap = static_cast<float>(number());
            check(op.softcap >= 0, "scale: softcap");
        } else {
            op.kind = kind == "cast" ? RowKind::cast : RowKind::gather;
            if (kind == "cast") {
                op.a = view(), note();
                op.out = view(), note();
            } else {
                op.a = whole();
                op.out = whole(), note();
                op.index = exe_.row_.data();
            }
        }
        if (op.kind == RowKind::gather) check(domain_ == 'R', "gather: rows");
        if (op.kind != RowKind::kv_write && op.kind != RowKind::embed)
            check(columns_of(op.out) == columns_of(op.a), "a row op whose output is not as wide as its input");
        check(op.kind == RowKind::embed || op.a.dtype == Dtype::f32 || op.a.dtype == Dtype::bf16, "a row op on codes");
        check_q8(op.out);
        push_rows(op, domain_, used, op.kind == RowKind::kv_write ? -1 : last_buffer_);
    }

    static bool q8_fits(const View& v, std::int64_t unit) {
        return v.dtype != Dtype::q8 ||
               (v.dense && v.offset % kGroup == 0 &&
                (unit % kGroup == 0 || (v.offset == 0 && columns_of(v) == v.columns && unit == columns_of(v))));
    }
    void check_q8(const View& v) const {
        check(q8_fits(v, columns_of(v)), "a q8 view that does not start and end with its groups");
    }

    // Joins the last stage where rows stay within a thread and no output lands on what an earlier op of it still uses
    // (the planner lets a dead buffer's memory be reused, with another stride).
    void push_rows(const RowOp& op, char domain, const std::vector<std::int64_t>& used, std::int64_t out) {
        bool join = !exe_.stages_.empty() && exe_.stages_.back().kind == StageKind::rows &&
                    exe_.stages_.back().domain == domain && !border(index_) && op.kind != RowKind::gather;
        if (join && out >= 0)
            for (std::int64_t other : stage_buffers_)
                join = join && (other == out || disjoint(buffer(other), buffer(out)));
        if (!join) {
            stage_buffers_.clear();
            Stage s{};
            s.kind = StageKind::rows;
            s.domain = domain;
            s.first_op = index_;
            exe_.stages_.push_back(std::move(s));
        }
        Stage& stage = exe_.stages_.back();
        stage.rows.push_back(op);
        stage.end_op = index_ + 1;
        stage_buffers_.insert(stage_buffers_.end(), used.begin(), used.end());
        widest_ =
            std::max({widest_, std::int64_t{op.a.columns}, std::int64_t{op.b.columns}, std::int64_t{op.out.columns}});
    }
    bool border(std::int64_t op) const {
        return std::any_of(spec_.segments.begin(), spec_.segments.end(),
                           [&](const auto& s) { return s.second.first == op || s.second.second == op; });
    }
    bool disjoint(const BufferSpec& a, const BufferSpec& b) const {
        return end_of(a) <= b.offset || end_of(b) <= a.offset;
    }

    // A stage of our own behind an op that cannot write its buffer's dtype: f32 in memory of ours, then a cast.
    View detour(const View& out, std::int64_t rows) {
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
    void push_cast(View from, View to, char domain) {
        RowOp cast{};
        cast.kind = RowKind::cast;
        cast.a = from;
        cast.out = to;
        stage_buffers_.clear();
        Stage s{};
        s.kind = StageKind::rows;
        s.domain = domain;
        s.first_op = index_;
        s.end_op = index_ + 1;
        s.rows.push_back(cast);
        exe_.stages_.push_back(std::move(s));
        // Nothing joins it: its memory is shared by all detours.
        stage_buffers_.clear();
        for (std::size_t i = 0; i < spec_.buffers.size(); i++) stage_buffers_.push_back(static_cast<std::int64_t>(i));
        widest_ = std::max({widest_, std::int64_t{from.columns}, std::int64_t{to.columns}});
    }

    void push_linear(const View& x, View out, const LinearWeight& w, const float* bias, bool accumulate, float scale) {
        const char domain = domain_;
        check(x.dtype == rows_for(w.format), "linear: the activation dtype is not the format's");
        check(x.columns == w.k && columns_of(out) == w.n, "linear: shapes");
        check(!accumulate || (out.dtype == Dtype::f32 && out.dense), "linear: accumulate needs a dense f32 output");
        check_q8(out);
        const View to = out;
        const bool indirect = !out.dense || out.dtype == Dtype::q8;
        if (indirect) out = detour(out, rows_of(domain));
        Stage s{};
        s.kind = StageKind::linear;
        s.domain = domain;
        s.first_op = index_;
        s.end_op = index_ + 1;
        const std::int64_t unit = out.dtype == Dtype::f32 ? 4 : 2;
        LinearTask& t = s.linear.task;
        t.weight = w;
        t.x = x.base;
        t.x_stride = static_cast<std::size_t>(x.row_bytes);
        t.out = out.base == nullptr ? nullptr : out.base + out.offset * unit;
        t.out_stride = static_cast<std::size_t>(out.row_bytes);
        t.out_type = out.dtype;
        t.accumulate = accumulate;
        t.bias = bias;
        t.scale = scale;
        s.linear.panels = static_cast<std::int64_t>(panels_of(static_cast<std::size_t>(w.n)));
        s.linear.row_block = static_cast<std::int64_t>(linear_row_block(w.format, static_cast<std::size_t>(w.k)));
        exe_.scratch_bytes_ =
            std::max(exe_.scratch_bytes_,
                     static_cast<std::int64_t>(linear_scratch_bytes(w.format, static_cast<std::size_t>(w.k))));
        exe_.stages_.push_back(std::move(s));
        if (indirect) push_cast(out, to, domain);
    }

    void add_linear() {
        const View x = whole();
        const View out = view();
        const LinearWeight w = matrix();
        const std::size_t at = next_;
        const float* bias = nullptr;
        if (integer() >= 0) {
            next_ = at;
            bias = vector(w.n);
        }
        const bool accumulate = integer() != 0;
        push_linear(x, out, w, bias, accumulate, static_cast<float>(number()));
    }

    void add_head() {
        const View x = whole();
        const View out = whole();
        check(out.dtype == Dtype::f32 && domain_ == 'R' && out.columns == spec_.vocab,
              "head: logits are f32[R, vocab]");
        const LinearWeight w = matrix();
        exe_.logits_ = out;
        push_linear(x, out, w, nullptr, false, 1.0f);
    }

    void add_attend() {
        Stage s{};
        s.kind = StageKind::attend;
        s.first_op = index_;
        s.end_op = index_ + 1;
        AttendOp& op = s.attend;
        op.q = view();
        op.out = view();
        s.domain = domain_;
        check(domain_ == 'T', "attend: rows");
        std::size_t group = 0;
        op.kv = layer(group);
        op.scale = static_cast<float>(number()) * 0x1.715476p+0f;
        check(op.q.dtype == Dtype::f32 || op.q.dtype == Dtype::bf16, "attend: q is f32 or bf16");
        check(op.q.width == op.kv.dim && op.q.heads % op.kv.heads == 0, "attend: heads");
        check(columns_of(op.out) == columns_of(op.q), "attend: output width");
        op.group = op.q.heads / op.kv.heads;
        if (op.out.dense) {
            // Heads side by side, however the view says it.
            op.out.heads = op.q.heads;
            op.out.width = op.out.stride = op.kv.dim;
        }
        check(op.out.width == op.kv.dim, "attend: output heads");
        op.max_blocks = static_cast<std::int32_t>(spec_.limits.max_blocks);
        op.table = exe_.inputs_.table[group].data();
        op.partial_stride = static_cast<std::int64_t>(round_up(static_cast<std::size_t>(op.kv.dim), 16)) + 16;
        const View to = op.out;
        check_q8(to);
        const bool indirect = !q8_fits(to, std::int64_t{op.group} * op.kv.dim);
        if (indirect) op.out = detour(to, spec_.limits.max_tokens);
        partial_stride_ = std::max(partial_stride_, op.partial_stride);
        s.plan = plan_for(static_cast<std::int32_t>(group), op.group);
        exe_.scratch_bytes_ = std::max(
            exe_.scratch_bytes_, static_cast<std::int64_t>(attend_scratch_bytes(static_cast<std::size_t>(op.kv.dim),
                                                                                static_cast<std::size_t>(op.group))));
        exe_.stages_.push_back(std::move(s));
        if (indirect) push_cast(exe_.stages_.back().attend.out, to, 'T');
    }

    std::int32_t plan_for(std::int32_t group, std::int32_t heads_per_kv) {
        for (std::size_t i = 0; i < exe_.plans_.size(); i++)
            if (exe_.plans_[i].group == group && exe_.plans_[i].heads_per_kv == heads_per_kv)
                return static_cast<std::int32_t>(i);
        AttendPlan plan{};
        plan.group = group;
        plan.heads_per_kv = heads_per_kv;
        exe_.plans_.push_back(std::move(plan));
        return static_cast<std::int32_t>(exe_.plans_.size() - 1);
    }

    // -- the whole ----------------------------------------------------------------------------------------------------
    void find_segments() {
        const auto& stages = exe_.stages_;
        auto stage_at = [&](std::int64_t op) {
            std::size_t i = 0;
            while (i < stages.size() && stages[i].first_op < op) i++;
            return i;
        };
        for (const auto& [name, range] : spec_.segments) {
            check(range.first >= 0 && range.first <= range.second &&
                      range.second <= static_cast<std::int64_t>(spec_.ops.size()),
                  "a segment");
            exe_.segments_[name] = {stage_at(range.first), stage_at(range.second)};
        }
        exe_.counters_ = std::make_unique<Counter[]>(stages.size());
    }

    void place_extra() {
        const std::int64_t threads = exe_.team_->threads();
        const std::int64_t row_scratch = 4 * 3 * ((widest_ + 31) / 16 * 16);
        exe_.scratch_bytes_ = (std::max(exe_.scratch_bytes_, row_scratch) + 4096 + 4095) / 4096 * 4096;
        exe_.scratch_ = std::make_unique<Arena>(static_cast<std::size_t>(exe_.scratch_bytes_ * threads));
        exe_.extra_ = std::make_unique<Arena>(static_cast<std::size_t>(extra_bytes_ + 64), extra_bytes_ > (2 << 20));
        exe_.max_partial_rows_ = 8192;
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

    Executable& exe_;
    const ExecutableSpec& spec_;
    const OpSpec* op_ = nullptr;
    std::size_t next_ = 0;
    std::int64_t index_ = 0;
    char domain_ = 'T';
    std::int64_t last_buffer_ = -1;
    std::vector<std::int64_t> stage_buffers_;
    std::int64_t widest_ = 0, extra_bytes_ = 0, partial_stride_ = 16;
};

Executable::Executable(std::shared_ptr<Team> team, const ExecutableSpec& spec, const Kernels& kernels)
    : team_(std::move(team)),
      kernels_(kernels),
      limits_(spec.limits),
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
