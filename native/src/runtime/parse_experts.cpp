// Mixture of experts: route and combine are row ops; an expert linear is a stage behind one that sorts the step's rows.
#include <algorithm>

#include "executable_parser.h"

namespace octavo {

// The ids are a buffer of i32, the weights one of f32, [T, k].
void Executable::Parser::add_route() {
    RowOp op{};
    op.kind = RowKind::route;
    op.a = view();
    op.b = whole();
    op.out = whole();
    op.norm = integer() != 0;
    op.factor = static_cast<float>(number());
    check_spec(op.a.dtype == Dtype::f32 || op.a.dtype == Dtype::bf16, "a row op on codes");
    check_spec(op.b.dtype == Dtype::i32 && op.out.dtype == Dtype::f32, "route: ids are i32, weights f32");
    check_spec(op.b.width == op.out.width && op.out.width <= columns_of(op.a), "route: more experts chosen than exist");
    check_rows_agree();
    sorted_ids_ = -1;
    push_rows(op, 2);
}

void Executable::Parser::add_expert_linear() {
    const View x = whole();
    const bool per_token = times_ == 1;
    const View ids = whole();
    const View out = whole();
    const LinearWeight w = matrix();
    const std::int64_t experts = integer(), chosen = ids.width;
    check_spec(x.dtype == rows_for(w.format), "expert_linear: the activation dtype is not the format's");
    check_spec(x.columns == w.k && out.columns == w.n, "expert_linear: shapes");
    check_spec(out.dtype == Dtype::f32 || out.dtype == Dtype::bf16, "expert_linear: output dtype");
    check_spec(ids.dtype == Dtype::i32 && experts >= chosen && experts <= 65536, "expert_linear: ids");
    const BufferSpec &bx = buffer(touched_[0]), &bi = buffer(touched_[1]);
    check_spec(bi.times == 1 && times_ == chosen && (per_token || bx.times == chosen), "expert_linear: rows");
    check_spec(bx.rows == domain_ && bi.rows == domain_, "an op over buffers of different rows");
    const std::int32_t plan = expert_plan_for(experts, chosen);
    ExpertPlan& p = exe_.expert_plans_[static_cast<std::size_t>(plan)];
    const auto n = static_cast<std::size_t>(w.n), k = static_cast<std::size_t>(w.k);
    p.row_block = std::min(p.row_block, static_cast<std::int64_t>(linear_row_block(w.format, k)));
    if (sorted_ids_ != touched_[1]) {
        Stage& sort = new_stage(StageKind::sort);
        sort.plan = plan;
        sort.experts.ids = ids;
        sorted_ids_ = touched_[1];
    }
    Stage& s = new_stage(StageKind::experts);
    s.plan = plan;
    s.experts.panels = static_cast<std::int64_t>(panels_of(n));
    s.experts.weight_stride = static_cast<std::int64_t>(packed_bytes(w.format, n, k));
    s.experts.per_token = per_token;
    LinearTask& t = s.experts.task;
    t.weight = w;
    t.x = x.base;
    t.x_stride = static_cast<std::size_t>(x.row_bytes);
    t.out = out.base;
    t.out_stride = static_cast<std::size_t>(out.row_bytes);
    t.out_type = out.dtype;
    t.scale = 1.0f;
    need_scratch(linear_scratch_bytes(w.format, k) +
                 static_cast<std::size_t>(kExpertRows) * (t.x_stride + 4 * kPanel * kExpertPanels));
}

void Executable::Parser::add_combine() {
    RowOp op{};
    op.kind = RowKind::combine;
    op.a = view();
    const std::int64_t chosen = times_;
    op.b = whole();
    op.out = view();
    check_spec(op.a.dtype == Dtype::f32 || op.a.dtype == Dtype::bf16, "a row op on codes");
    check_spec(op.b.dtype == Dtype::f32 && op.b.width == chosen, "combine: weights are f32[T, k]");
    check_spec(columns_of(op.a) == columns_of(op.out) && op.out.dtype != Dtype::i32, "combine: output");
    check_spec(times_ == 1 && buffer(touched_[1]).times == 1, "combine: rows");
    for (const std::int64_t i : touched_) check_spec(buffer(i).rows == domain_, "an op over buffers of different rows");
    check_q8(op.out);
    push_rows(op, 1);
}

// All layers of a model share one: a sort stage fills it, the expert linears behind it read it.
std::int32_t Executable::Parser::expert_plan_for(std::int64_t experts, std::int64_t chosen) {
    auto& plans = exe_.expert_plans_;
    for (std::size_t i = 0; i < plans.size(); i++)
        if (plans[i].experts == experts && plans[i].chosen == chosen) return static_cast<std::int32_t>(i);
    ExpertPlan plan{};
    plan.experts = experts;
    plan.chosen = chosen;
    plan.row_block = kExpertRows;
    const auto rows = static_cast<std::size_t>(rows_of(domain_) * chosen);
    plan.start.resize(static_cast<std::size_t>(experts) + 1);
    plan.order.resize(rows);
    plan.units.reserve(std::min(rows, static_cast<std::size_t>(experts)) + rows / 12 + 1);
    plans.push_back(std::move(plan));
    return static_cast<std::int32_t>(plans.size() - 1);
}

}  // namespace octavo
