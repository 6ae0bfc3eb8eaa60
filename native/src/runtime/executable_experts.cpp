// Expert linears: the step's rows (token, j-th expert) in order of expert, cut into units of one expert and at most
// row_block rows; an item is a unit times a range of panels. Whoever shares an expert shares the reading of its weights
// and nothing else: a row's sums are the linear kernel's, the same in every company.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "../check.h"
#include "octavo/executable.h"

namespace octavo {
// Counting sort by expert (stable: token order within an expert), then the items of the expert linears up to the next
// sort. One thread does it while the others wait: a step has few rows, and each costs a few cycles.
void Executable::sort_rows(const Stage& stage) {
    ExpertPlan& plan = expert_plans_[static_cast<std::size_t>(stage.plan)];
    const View& ids = stage.experts.ids;
    const std::int64_t tokens = stage.domain == 'T' ? num_tokens_ : num_rows_;
    const auto chosen = static_cast<std::int32_t>(plan.chosen);
    const auto row = [&](std::int64_t t) {
        return reinterpret_cast<const std::int32_t*>(ids.base + t * ids.row_bytes);
    };
    std::fill(plan.start.begin(), plan.start.end(), 0);
    for (std::int64_t t = 0; t < tokens; t++)
        for (std::int32_t j = 0; j < chosen; j++) {
            const std::int32_t expert = row(t)[j];
            if (expert < 0 || expert >= plan.experts) throw std::runtime_error("expert_linear: no such expert");
            plan.start[static_cast<std::size_t>(expert) + 1]++;
        }
    plan.units.clear();
    for (std::int64_t e = 0; e < plan.experts; e++) {
        const auto at = static_cast<std::size_t>(e);
        const std::int64_t count = plan.start[at + 1], first = plan.start[at];
        const std::int64_t pieces = ceil_div(count, plan.row_block);
        for (std::int64_t i = 0; i < pieces; i++)
            plan.units.push_back({static_cast<std::int32_t>(e), static_cast<std::int32_t>(first + count * i / pieces),
                                  static_cast<std::int32_t>(first + count * (i + 1) / pieces)});
        plan.start[at + 1] += static_cast<std::int32_t>(first);
    }
    for (std::int64_t t = 0; t < tokens; t++)
        for (std::int32_t j = 0; j < chosen; j++)
            plan.order[static_cast<std::size_t>(plan.start[static_cast<std::size_t>(row(t)[j])]++)] =
                static_cast<std::int32_t>(t) * chosen + j;
    const auto units = static_cast<std::int64_t>(plan.units.size());
    for (auto s = stages_.begin() + (&stage - stages_.data()) + 1; s != stages_.end(); ++s) {
        if (s->kind == StageKind::sort) break;
        if (s->kind != StageKind::experts) continue;
        const std::int64_t piece = s->experts.panels * units / (team_->threads() * 8);
        s->piece = std::clamp<std::int64_t>(piece / 2 * 2, 2, kExpertPanels);
        s->items = units * ceil_div(s->experts.panels, s->piece);
    }
}

void Executable::run_experts(const Stage& stage, std::int64_t item, int thread) {
    const ExpertOp& op = stage.experts;
    const ExpertPlan& plan = expert_plans_[static_cast<std::size_t>(stage.plan)];
    const std::int64_t pieces = ceil_div(op.panels, stage.piece);
    const ExpertPlan::Unit& unit = plan.units[static_cast<std::size_t>(item / pieces)];
    const std::int64_t panel0 = item % pieces * stage.piece, panel1 = std::min(op.panels, panel0 + stage.piece);
    LinearTask task = op.task;
    LinearWeight& w = task.weight;
    w.panels += unit.expert * op.weight_stride +
                panel0 * static_cast<std::int64_t>(panel_bytes(w.format, static_cast<std::size_t>(w.k)));
    w.n -= panel0 * kPanel;
    task.panel1 = panel1 - panel0;
    const std::size_t item_bytes = task.out_type == RowType::f32 ? 4 : 2;
    task.out += static_cast<std::size_t>(panel0 * kPanel) * item_bytes;
    task.row1 = unit.end - unit.first;
    task.scratch = scratch_->data() + thread * scratch_bytes_;
    const std::int32_t* order = plan.order.data() + unit.first;
    const auto source = [&](std::int64_t i) {
        return op.task.x + static_cast<std::size_t>(op.per_token ? order[i] / plan.chosen : order[i]) * task.x_stride;
    };
    if (task.row1 == 1) {
        task.x = source(0);
        task.out += static_cast<std::size_t>(order[0]) * task.out_stride;
        kernels_.linear_panels(task);
        return;
    }
    // The rows are gathered, and the columns scattered: both small beside the product.
    std::uint8_t* rows = task.scratch + round_up(linear_scratch_bytes(w.format, static_cast<std::size_t>(w.k)), kAlign);
    std::uint8_t* columns = rows + static_cast<std::size_t>(kExpertRows) * task.x_stride;
    for (std::int64_t i = 0; i < task.row1; i++)
        std::memcpy(rows + static_cast<std::size_t>(i) * task.x_stride, source(i), task.x_stride);
    std::uint8_t* const out = task.out;
    const std::size_t bytes = static_cast<std::size_t>(std::min(w.n, task.panel1 * kPanel)) * item_bytes;
    task.x = rows;
    task.out = columns;
    task.out_stride = static_cast<std::size_t>(kExpertPanels) * kPanel * item_bytes;
    kernels_.linear_panels(task);
    for (std::int64_t i = 0; i < task.row1; i++)
        std::memcpy(out + static_cast<std::size_t>(order[i]) * op.task.out_stride,
                    columns + static_cast<std::size_t>(i) * task.out_stride, bytes);
}

}  // namespace octavo
