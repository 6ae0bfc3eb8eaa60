// Runs a lowered Program: ops in order over the team, a stage begins when the one before is done, nothing allocated in
// a step.
//
//   inputs (B numbers each) ──prologue──> token, pos, kv_slot [T], row [R], attention items
//   stage = one linear | one attend | a run of row ops (each row goes through all of them)
//         | sorting a step's rows by expert | one expert linear over the rows so sorted
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "octavo/arena.h"
#include "octavo/homes.h"
#include "octavo/kernels.h"
#include "octavo/padded.h"
#include "octavo/spec.h"
#include "octavo/team.h"

namespace octavo {

// What the runner writes before a step; docs/dev/native-abi.md, `inputs`.
struct Inputs {
    std::vector<std::int32_t> slot, count, start, kv_len, rows, skip;  // [max_seqs]
    std::vector<std::vector<std::int32_t>> table;                      // per group [max_seqs * max_blocks]
};

// Rows of one expert that an item multiplies at most, and panels: what it gathers and scatters stays in a core's cache.
constexpr std::int64_t kExpertRows = 96, kExpertPanels = 16;

class Executable {
public:
    // Throws std::invalid_argument where the spec contradicts itself.
    Executable(std::shared_ptr<Team> team, const ExecutableSpec& spec, const Kernels& kernels);

    // Ops of the batch's first B sequences: all of them, or one segment. Throws std::invalid_argument for inputs out
    // of range, std::runtime_error where a thread failed.
    void forward(std::int64_t num_seqs);
    void forward(std::int64_t num_seqs, const std::string& segment);

    Inputs& inputs() { return inputs_; }
    const Limits& limits() const { return limits_; }
    std::int64_t vocab() const { return vocab_; }
    std::int32_t* tokens() { return reinterpret_cast<std::int32_t*>(tokens_.data()); }
    Team& team() { return *team_; }
    const Kernels& kernels() const { return kernels_; }

    // The step at hand: logits [num_rows] of the last head op, and the batch index of each row.
    std::int64_t num_rows() const { return num_rows_; }
    std::int64_t num_seqs() const { return num_seqs_; }
    std::int64_t row_position(std::int64_t row) const {
        return pos_[static_cast<std::size_t>(row_[static_cast<std::size_t>(row)])];
    }
    bool has_logits() const { return logits_.base != nullptr; }  // the spec has a head
    const float* logits(std::int64_t row) const;
    float* logits(std::int64_t row);
    const std::vector<std::int32_t>& row_seq() const { return row_seq_; }

    // Wall seconds from thread 0 beginning each stage until all threads ended it, since profile(true), with the ops it
    // covers.
    struct Timing {
        std::string ops;
        double seconds;
        std::int64_t calls;
    };
    void profile(bool on);
    std::vector<Timing> timings() const;
    // Spans of keys that a KV head of a layer did not read again in the last step, since sequences shared them.
    std::int64_t spans_saved() const;

private:
    enum class StageKind { rows, linear, attend, sort, experts };
    struct LinearOp {
        LinearTask task;  // rows and panels are set by item
        std::int64_t panels, row_block;
    };
    // y[r] = x[r] w[expert of r]^T, r = token * chosen + j. Executed by executable_experts.cpp.
    struct ExpertOp {
        LinearTask task;  // of expert 0; rows and panels are set by item
        std::int64_t panels, weight_stride;
        bool per_token;  // x has a row a token, not a row for each of its experts
        View ids;        // sort
    };
    struct Stage {
        StageKind kind;
        char domain;         // T or R: how many rows,
        std::int64_t times;  // and how many for each of those
        std::int64_t first_op, end_op;
        std::vector<RowOp> rows;
        LinearOp linear{};
        AttendOp attend{};
        ExpertOp experts{};
        std::int32_t plan = -1;  // attend: index in plans_; sort, experts: in expert_plans_
        // Set by `prepare`:
        std::int64_t items = 0, piece = 0;
        double seconds = 0;
        std::int64_t calls = 0;
    };
    struct Decode {
        std::int32_t seq, token;
    };
    // How the attends of one (KV group, query heads per KV head) divide a step; all layers share it.
    struct AttendPlan {
        std::int32_t group, heads_per_kv;
        bool built = false;  // in the run at hand
        std::int32_t window;
        std::vector<AttendItem> items;
        std::vector<double> cost;
        std::vector<AttendSplit> splits;
        std::unique_ptr<std::atomic<std::int32_t>[]> pending;
        std::vector<std::uint32_t> order;
        // What sequences that decode share: who they are, who is dealt with, the tokens of items with several.
        std::vector<Decode> decodes, alike;
        std::vector<std::uint8_t> done;
        std::vector<std::int32_t> shared;
        std::int64_t spans_saved = 0;
    };
    // The rows of a step by expert, and the pieces in which they are multiplied. Filled by a sort stage, used by the
    // expert linears behind it.
    struct ExpertPlan {
        struct Unit {
            std::int32_t expert, first, end;  // rows order[first, end)
        };
        std::int64_t experts, chosen, row_block;
        std::vector<std::int32_t> start;  // [experts + 1]
        std::vector<std::int32_t> order;  // [max_tokens * chosen]
        std::vector<Unit> units;
    };
    class Parser;
    friend class Parser;
    void run(std::int64_t num_seqs, std::size_t first, std::size_t end);
    void build_batch(std::int64_t num_seqs);
    void build_tokens(std::int64_t seq, std::int64_t& token);
    void build_plan(AttendPlan& plan, std::int64_t num_seqs);
    void share_prefixes(AttendPlan& plan, std::int64_t num_seqs, std::int64_t& partial_rows);
    void add_shared(AttendPlan& plan, std::int32_t spans, std::int64_t& partial_rows);
    static double tile_cost(const AttendPlan& plan, std::int64_t rows, std::int64_t position, std::int64_t tokens);
    void add_tile(AttendPlan& plan, const AttendItem& tile, double limit, std::int64_t& partial_rows);
    void prepare(Stage& stage);
    void run_stage(std::size_t index, int thread);
    void run_item(const Stage& stage, std::int64_t item, int thread);
    void run_linear(const Stage& stage, std::int64_t item, int thread);
    void run_attend(const Stage& stage, std::int64_t item, int thread);
    void sort_rows(const Stage& stage);
    void run_experts(const Stage& stage, std::int64_t item, int thread);
    std::int64_t rows_of(const Stage& stage) const;

    std::shared_ptr<Team> team_;
    const Kernels& kernels_;
    Limits limits_;
    std::int64_t vocab_;
    std::vector<KvSpec> kv_;
    std::map<std::string, std::pair<std::size_t, std::size_t>> segments_;  // in stages
    std::vector<Stage> stages_;
    std::unique_ptr<Homes> homes_;            // a work a stage
    std::vector<Padded<std::int64_t>> done_;  // items of each stage
    std::vector<std::unique_ptr<LinearWeight>> embeds_;
    std::vector<AttendPlan> plans_;
    std::vector<ExpertPlan> expert_plans_;
    std::int64_t vocab_rows_ = 0;  // of the embedding

    Inputs inputs_;
    Arena tokens_;
    std::vector<std::int32_t> token_, pos_, row_, row_seq_;
    std::vector<std::vector<std::int64_t>> kv_slot_;
    std::int64_t num_tokens_ = 0, num_rows_ = 0, num_seqs_ = 0;
    View logits_{};

    std::int64_t scratch_bytes_ = 0;
    std::unique_ptr<Arena> scratch_, partials_, extra_;
    std::int64_t max_partial_rows_ = 0;
    bool profile_ = false;
};

}  // namespace octavo
