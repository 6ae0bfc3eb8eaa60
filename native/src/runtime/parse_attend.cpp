// Attention: a stage each; those of one shape share the plan of a step's items.
#include <algorithm>

#include "executable_parser.h"

namespace octavo {

void Executable::Parser::add_attend() {
    AttendOp op{};
    op.q = view();
    op.out = view();
    check_spec(domain_ == 'T' && times_ == 1, "attend: rows");
    check_rows_agree();
    std::size_t group = 0;
    op.kv = layer(group);
    constexpr float kLog2e = 0x1.715476p+0f;
    const auto scale = static_cast<float>(number()), cap = static_cast<float>(number());
    op.scale = cap > 0 ? scale / cap : scale * kLog2e;
    op.cap = cap > 0 ? cap * kLog2e : 0.0f;
    op.kv.balance = balance(op.kv);
    op.window = static_cast<std::int32_t>(spec_.kv[group].window);
    check_spec(op.q.dtype == Dtype::f32 || op.q.dtype == Dtype::bf16, "attend: q is f32 or bf16");
    check_spec(op.q.width == op.kv.dim && op.q.heads % op.kv.heads == 0, "attend: heads");
    check_spec(columns_of(op.out) == columns_of(op.q), "attend: output width");
    op.group = op.q.heads / op.kv.heads;
    if (op.out.dense) {
        // Heads side by side, however the view says it.
        op.out.heads = op.q.heads;
        op.out.width = op.out.stride = op.kv.dim;
    }
    check_spec(op.out.width == op.kv.dim, "attend: output heads");
    op.max_blocks = static_cast<std::int32_t>(spec_.limits.max_blocks);
    op.table = exe_.inputs_.table[group].data();
    op.partial_stride = static_cast<std::int64_t>(round_up(static_cast<std::size_t>(op.kv.dim), 16)) + 16;
    const View to = op.out;
    check_q8(to);
    const bool indirect = to.dtype == Dtype::q8t || !q8_fits(to, std::int64_t{op.group} * op.kv.dim);
    if (indirect) op.out = detour(to, spec_.limits.max_tokens);
    partial_stride_ = std::max(partial_stride_, op.partial_stride);
    need_scratch(attend_scratch_bytes(static_cast<std::size_t>(op.kv.dim), static_cast<std::size_t>(op.group)));
    Stage& s = new_stage(StageKind::attend);
    s.plan = plan_for(static_cast<std::int32_t>(group), op.group);
    s.attend = op;
    if (indirect) push_cast(op.out, to);
}

std::int32_t Executable::Parser::plan_for(std::int32_t group, std::int32_t heads_per_kv) {
    for (std::size_t i = 0; i < exe_.plans_.size(); i++)
        if (exe_.plans_[i].group == group && exe_.plans_[i].heads_per_kv == heads_per_kv)
            return static_cast<std::int32_t>(i);
    AttendPlan plan{};
    plan.group = group;
    plan.heads_per_kv = heads_per_kv;
    plan.shared.reserve(static_cast<std::size_t>(spec_.limits.max_seqs));  // items point into it
    exe_.plans_.push_back(std::move(plan));
    return static_cast<std::int32_t>(exe_.plans_.size() - 1);
}

}  // namespace octavo
