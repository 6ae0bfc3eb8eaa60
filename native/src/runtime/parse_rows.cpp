// Row ops: their fields, and how they join into stages.
#include <algorithm>

#include "executable_parser.h"

namespace octavo {

void Executable::Parser::add_embed() {
    RowOp op{};
    op.kind = RowKind::embed;
    op.out = whole();
    exe_.embeds_.push_back(std::make_unique<LinearWeight>(matrix()));
    op.weight = exe_.embeds_.back().get();
    check_spec(op.weight->k == op.out.width, "embed: width");
    exe_.vocab_rows_ = op.weight->n;
    op.index = exe_.token_.data();
    check_spec(times_ == 1, "embed: rows");
    check_q8(op.out);
    push_rows(op, 1);
}

void Executable::Parser::add_norm() {
    RowOp op{};
    op.kind = RowKind::norm;
    op.a = view();
    op.out = view();
    const std::size_t at = next_++;
    op.eps = static_cast<float>(number());
    op.per_head = integer() != 0;
    const std::size_t after = next_;
    next_ = at;
    op.vector = vector(op.per_head ? op.a.width : columns_of(op.a));
    next_ = after;
    push_mapped(op);
}

void Executable::Parser::add_rope() {
    RowOp op{};
    op.kind = RowKind::rope;
    op.a = view();
    op.out = view();
    const std::size_t at = next_;
    next_ += 2;
    op.rotary = static_cast<std::int32_t>(integer());
    const std::size_t after = next_;
    next_ = at;
    check_spec(op.rotary > 0 && op.rotary % 2 == 0 && op.rotary <= op.a.width, "rope: rotary width");
    op.cos = vector(spec_.limits.max_len * op.rotary / 2);
    op.sin = vector(spec_.limits.max_len * op.rotary / 2);
    next_ = after;
    op.index = exe_.pos_.data();
    check_spec(domain_ == 'T' && times_ == 1, "rope: rows");
    push_mapped(op);
}

void Executable::Parser::add_kv_write() {
    RowOp op{};
    op.kind = RowKind::kv_write;
    op.a = view();
    op.b = view();
    op.out = op.a;
    std::size_t group = 0;
    op.kv = layer(group);
    op.kv.balance = balance(op.kv);
    op.kv_slot = exe_.kv_slot_[group].data();
    check_spec(columns_of(op.a) == std::int64_t{op.kv.heads} * op.kv.dim && columns_of(op.b) == columns_of(op.a),
               "kv_write: width");
    check_spec(op.a.dtype == Dtype::f32 || op.a.dtype == Dtype::bf16, "a row op on codes");
    check_spec(domain_ == 'T' && times_ == 1, "kv_write: rows");
    check_rows_agree();
    push_rows(op, 0);
}

// a, b and out, all of one width.
RowOp Executable::Parser::elementwise(RowKind kind) {
    RowOp op{};
    op.kind = kind;
    op.a = view();
    op.b = view();
    op.out = view();
    check_spec(columns_of(op.a) == columns_of(op.b), "act or add: widths");
    return op;
}

void Executable::Parser::add_act() {
    RowOp op = elementwise(RowKind::act);
    op.fn = static_cast<std::int32_t>(integer());
    check_spec(op.fn >= 0 && op.fn < kActs, "act: function");
    push_mapped(op);
}

void Executable::Parser::add_add() {
    RowOp op = elementwise(RowKind::add);
    op.factor = static_cast<float>(number());
    push_mapped(op);
}

void Executable::Parser::add_scale() {
    RowOp op{};
    op.kind = RowKind::scale;
    op.a = view();
    op.out = view();
    op.factor = static_cast<float>(number());
    op.softcap = static_cast<float>(number());
    check_spec(op.softcap >= 0, "scale: softcap");
    push_mapped(op);
}

void Executable::Parser::add_cast() {
    RowOp op{};
    op.kind = RowKind::cast;
    op.a = view();
    op.out = view();
    push_mapped(op);
}

void Executable::Parser::add_gather() {
    RowOp op{};
    op.kind = RowKind::gather;
    op.a = whole();
    op.out = whole();
    op.index = exe_.row_.data();
    check_spec(domain_ == 'R' && times_ == 1 && buffer(touched_[0]).times == 1, "gather: rows");
    push_mapped(op);
}

// An op whose output has the columns of its input `a`.
void Executable::Parser::push_mapped(const RowOp& op) {
    check_spec(columns_of(op.out) == columns_of(op.a), "a row op whose output is not as wide as its input");
    check_spec(op.a.dtype == Dtype::f32 || op.a.dtype == Dtype::bf16, "a row op on codes");
    check_spec(op.out.dtype != Dtype::i32, "a row op that writes numbers into an i32 buffer");
    check_q8(op.out);
    if (op.kind != RowKind::gather) check_rows_agree();
    push_rows(op, 1);
}

// Row r of every buffer of the op belongs together.
void Executable::Parser::check_rows_agree() const {
    for (const std::int64_t i : touched_)
        check_spec(buffer(i).rows == domain_ && buffer(i).times == times_, "an op over buffers of different rows");
}

// Joins the last stage where rows stay within a thread and no output lands on what an earlier op of it still uses
// (the planner lets a dead buffer's memory be reused, with another stride). It writes the last `num_written` buffers.
void Executable::Parser::push_rows(const RowOp& op, std::int64_t num_written) {
    bool join = !exe_.stages_.empty() && exe_.stages_.back().kind == StageKind::rows &&
                exe_.stages_.back().domain == domain_ && exe_.stages_.back().times == times_ && !border(index_) &&
                op.kind != RowKind::gather;
    for (auto out = touched_.end() - num_written; join && out != touched_.end(); ++out)
        for (std::int64_t other : stage_buffers_)
            join = join && (other == *out || disjoint(buffer(other), buffer(*out)));
    Stage& stage = join ? exe_.stages_.back() : new_stage(StageKind::rows);
    stage.rows.push_back(op);
    stage.end_op = index_ + 1;
    stage_buffers_.insert(stage_buffers_.end(), touched_.begin(), touched_.end());
    widest_ = std::max({widest_, std::int64_t{op.a.columns}, std::int64_t{op.b.columns}, std::int64_t{op.out.columns}});
}

}  // namespace octavo
