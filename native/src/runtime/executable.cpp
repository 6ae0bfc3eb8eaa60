#include "octavo/executable.h"

#include <time.h>

#include <algorithm>

#include "../check.h"

namespace octavo {
namespace {

double wall_seconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

const float* Executable::logits(std::int64_t row) const {
    return reinterpret_cast<const float*>(logits_.base + row * logits_.row_bytes);
}
float* Executable::logits(std::int64_t row) { return reinterpret_cast<float*>(logits_.base + row * logits_.row_bytes); }

void Executable::forward(std::int64_t num_seqs) { run(num_seqs, 0, stages_.size()); }

void Executable::forward(std::int64_t num_seqs, const std::string& segment) {
    const auto found = segments_.find(segment);
    check(found != segments_.end(), "forward: no such segment");
    run(num_seqs, found->second.first, found->second.second);
}

// -- the batch
// ----------------------------------------------------------------------------------------------------------

void Executable::build_batch(std::int64_t num_seqs) {
    check(num_seqs > 0 && num_seqs <= limits_.max_seqs, "forward: more sequences than max_seqs, or none");
    std::int64_t token = 0, row = 0;
    for (std::int64_t b = 0; b < num_seqs; b++) {
        const auto i = static_cast<std::size_t>(b);
        const std::int64_t count = inputs_.count[i], start = inputs_.start[i], rows = inputs_.rows[i],
                           skip = inputs_.skip[i];
        check(inputs_.slot[i] >= 0 && inputs_.slot[i] < limits_.max_seqs, "slot: out of range");
        check(count > 0 && token + count <= limits_.max_tokens, "count: 0, or more tokens than max_tokens");
        check(start >= 0 && start + count <= limits_.max_len, "start: beyond max_len");
        check(inputs_.kv_len[i] == start + count, "kv_len: not start + count");
        check(rows >= 0 && skip >= 0 && rows + skip <= count, "rows: more than the chunk has");
        check(row + rows <= limits_.max_rows, "rows: more than max_rows");
        for (std::int64_t r = 0; r < rows; r++, row++) {
            row_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(token + count - skip - rows + r);
            row_seq_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(b);
        }
        build_tokens(b, token);
    }
    num_tokens_ = token;
    num_rows_ = row;
    num_seqs_ = num_seqs;
}

void Executable::build_tokens(std::int64_t seq, std::int64_t& token) {
    const auto b = static_cast<std::size_t>(seq);
    const std::int64_t count = inputs_.count[b], start = inputs_.start[b];
    const std::int32_t* known = tokens() + inputs_.slot[b] * limits_.max_len + start;
    for (std::int64_t j = 0; j < count; j++) {
        const auto t = static_cast<std::size_t>(token + j);
        check(known[j] >= 0 && (vocab_rows_ == 0 || known[j] < vocab_rows_), "tokens: an id outside the vocabulary");
        token_[t] = known[j];
        pos_[t] = static_cast<std::int32_t>(start + j);
    }
    for (std::size_t g = 0; g < kv_.size(); g++) {
        const std::int64_t size = kv_[g].block_size;
        const std::int32_t* table = inputs_.table[g].data() + seq * limits_.max_blocks;
        check(ceil_div(start + count, size) <= limits_.max_blocks, "start: beyond the block table");
        for (std::int64_t i = 0; i < ceil_div(start + count, size); i++)
            check(table[i] >= 0 && table[i] < kv_[g].num_blocks, "table: no such block");
        for (std::int64_t j = 0; j < count; j++) {
            const std::int64_t position = start + j;
            kv_slot_[g][static_cast<std::size_t>(token + j)] = table[position / size] * size + position % size;
        }
    }
    token += count;
}

// -- running
// ------------------------------------------------------------------------------------------------------------

std::int64_t Executable::rows_of(const Stage& stage) const {
    return stage.times * (stage.domain == 'T' ? num_tokens_ : stage.domain == 'R' ? num_rows_ : 0);
}

void Executable::prepare(Stage& stage) {
    const std::int64_t n = rows_of(stage);
    const std::int64_t threads = team_->threads();
    switch (stage.kind) {
        case StageKind::rows:
            stage.piece = std::max<std::int64_t>(1, n / (threads * 4));
            stage.items = ceil_div(n, stage.piece);
            break;
        case StageKind::linear: {
            LinearOp& linear = stage.linear;
            linear.task.row1 = n;
            const std::int64_t blocks = ceil_div(n, linear.row_block);
            std::int64_t piece = linear.panels * blocks / (threads * 8);
            piece = std::min<std::int64_t>(std::max<std::int64_t>(piece / 2 * 2, 2), 64);
            stage.piece = piece;
            stage.items = blocks * ceil_div(linear.panels, piece);
            break;
        }
        case StageKind::attend:
            stage.items =
                n == 0 ? 0 : static_cast<std::int64_t>(plans_[static_cast<std::size_t>(stage.plan)].items.size());
            break;
        case StageKind::sort: stage.items = 1; break;
        case StageKind::experts: stage.items = 0; break;  // set by the sort stage before it
    }
}

void Executable::run_linear(const Stage& stage, std::int64_t item, int thread) {
    LinearTask task = stage.linear.task;
    const std::int64_t n = task.row1, blocks = ceil_div(n, stage.linear.row_block);
    // Blocks of rows first, so that a home is one part of the weight.
    task.row0 = item % blocks * stage.linear.row_block;
    task.row1 = std::min(n, task.row0 + stage.linear.row_block);
    task.panel0 = item / blocks * stage.piece;
    task.panel1 = std::min(stage.linear.panels, task.panel0 + stage.piece);
    task.scratch = scratch_->data() + thread * scratch_bytes_;
    kernels_.linear_panels(task);
}

void Executable::run_attend(const Stage& stage, std::int64_t index, int thread) {
    AttendPlan& plan = plans_[static_cast<std::size_t>(stage.plan)];
    const AttendItem& item = plan.items[plan.order[static_cast<std::size_t>(index)]];
    std::uint8_t* scratch = scratch_->data() + thread * scratch_bytes_;
    // The next item of this home; where that was emptied by others, a wrong guess only fetches for nobody.
    const std::size_t after = static_cast<std::size_t>(index + team_->threads());
    const AttendItem* then = after < plan.order.size() ? &plan.items[plan.order[after]] : nullptr;
    kernels_.attend(stage.attend, item, then, scratch);
    if (item.split < 0) return;
    for (std::int32_t i = 0; i < item.splits; i++) {
        // Who finishes last folds, and readies the count for the next layer.
        const auto split = static_cast<std::size_t>(item.split + i);
        if (plan.pending[split].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
        plan.pending[split].store(plan.splits[split].parts, std::memory_order_relaxed);
        kernels_.attend_fold(stage.attend, plan.splits[split], scratch);
    }
}

void Executable::run_item(const Stage& stage, std::int64_t item, int thread) {
    switch (stage.kind) {
        case StageKind::rows: {
            const std::int64_t n = rows_of(stage);
            const std::int64_t first = item * stage.piece, last = std::min(n, first + stage.piece);
            auto* scratch = reinterpret_cast<float*>(scratch_->data() + thread * scratch_bytes_);
            for (const RowOp& op : stage.rows) kernels_.rows(op, first, last, scratch);
            break;
        }
        case StageKind::linear: run_linear(stage, item, thread); break;
        case StageKind::attend: run_attend(stage, item, thread); break;
        case StageKind::sort: sort_rows(stage); break;
        case StageKind::experts: run_experts(stage, item, thread); break;
    }
}

void Executable::run_stage(std::size_t index, int thread) {
    const Stage& stage = stages_[index];
    // An attend's items come in order of their cost.
    const bool dealt = stage.kind == StageKind::attend;
    const std::int64_t did =
        homes_->each(index, stage.items, dealt, thread, [&](std::int64_t item) { run_item(stage, item, thread); });
    if (did != 0) done_[index].value.fetch_add(did, std::memory_order_acq_rel);
}

void Executable::run(std::int64_t num_seqs, std::size_t first, std::size_t end) {
    build_batch(num_seqs);
    for (AttendPlan& plan : plans_) plan.built = false;
    for (std::size_t i = first; i < end; i++) {
        if (stages_[i].kind != StageKind::attend) continue;
        AttendPlan& plan = plans_[static_cast<std::size_t>(stages_[i].plan)];
        if (!plan.built) build_plan(plan, num_seqs);
        plan.built = true;
    }
    for (std::size_t i = first; i < end; i++) {
        prepare(stages_[i]);
        homes_->begin(i);
        done_[i].value.store(0, std::memory_order_relaxed);
    }
    auto body = [&](int thread) {
        for (std::size_t i = first; i < end; i++) {
            Stage& stage = stages_[i];
            const double began = profile_ && thread == 0 ? wall_seconds() : 0.0;
            run_stage(i, thread);
            if (!team_->wait_until(done_[i].value, stage.items)) return;
            if (profile_ && thread == 0) {
                stage.seconds += wall_seconds() - began;
                stage.calls++;
            }
        }
    };
    try {
        team_->run(body);
    } catch (...) {
        homes_->reset();
        throw;
    }
}

void Executable::profile(bool on) {
    profile_ = on;
    for (Stage& s : stages_) {
        s.seconds = 0;
        s.calls = 0;
    }
}

std::vector<Executable::Timing> Executable::timings() const {
    std::vector<Timing> out;
    static const char* const kNames[] = {"embed", "norm", "rope",   "kv_write", "act",    "add",
                                         "scale", "cast", "gather", "route",    "combine"};
    for (const Stage& s : stages_) {
        std::string name;
        for (const RowOp& op : s.rows)
            name += (name.empty() ? "" : "+") + std::string(kNames[static_cast<int>(op.kind)]);
        if (s.kind == StageKind::attend) name = "attend";
        if (s.kind == StageKind::sort) name = "sort";
        if (s.kind == StageKind::linear)
            name = "linear " + std::to_string(s.linear.task.weight.n) + "x" + std::to_string(s.linear.task.weight.k);
        if (s.kind == StageKind::experts)
            name = "experts " + std::to_string(s.experts.task.weight.n) + "x" + std::to_string(s.experts.task.weight.k);
        out.push_back({name, s.seconds, s.calls});
    }
    return out;
}

}  // namespace octavo
