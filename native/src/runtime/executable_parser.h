// Reads a spec's ops in order and leaves stages. An op kind is a row of kOps (executable_parse.cpp) and a function that
// reads its fields: parse_rows.cpp, parse_matmul.cpp, parse_attend.cpp,
// parse_experts.cpp.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "octavo/executable.h"

namespace octavo {

[[noreturn]] inline void refuse_spec(const std::string& what) {
    throw std::invalid_argument("executable spec: " + what);
}
inline void check_spec(bool ok, const char* what) {
    if (!ok) refuse_spec(what);
}
inline std::int64_t columns_of(const View& v) { return static_cast<std::int64_t>(v.heads) * v.width; }

class Executable::Parser {
public:
    Parser(Executable& exe, const ExecutableSpec& spec) : exe_(exe), spec_(spec) {}
    void parse();

private:
    struct OpKind {
        const char* name;
        void (Parser::*add)();
    };
    static const OpKind kOps[];

    void check_sizes() const;
    std::int64_t rows_of(char rows) const;
    std::int64_t rows_of(const BufferSpec& b) const { return rows_of(b.rows) * b.times; }
    std::int64_t end_of(const BufferSpec& b) const;
    bool disjoint(const BufferSpec& a, const BufferSpec& b) const;
    bool border(std::int64_t op) const;

    // -- fields of the op at hand, in order; buffers read so are noted in touched_ --
    double number();
    std::int64_t integer();
    const BufferSpec& buffer(std::int64_t i) const;
    View view();
    View whole();
    const BufferSpec& touch(std::int64_t i);
    View make_view(const BufferSpec& b, std::int64_t offset, std::int64_t heads, std::int64_t stride,
                   std::int64_t width) const;
    const WeightSpec& weight(std::int64_t i) const;
    const float* vector(std::int64_t n);
    const float* optional_vector(std::int64_t n);
    LinearWeight matrix();
    KvLayer layer(std::size_t& group);
    const float* balance(const KvLayer& kv);

    // -- ops --
    void add_embed();
    void add_norm();
    void add_rope();
    void add_kv_write();
    void add_act();
    void add_add();
    void add_scale();
    void add_cast();
    void add_gather();
    void add_linear();
    void add_head();
    void add_attend();
    void add_route();
    void add_expert_linear();
    void add_combine();
    static constexpr std::int64_t kActs = 3;  // functions of RowOp::fn
    RowOp elementwise(RowKind kind);

    // -- stages --
    Stage& new_stage(StageKind kind);
    void push_mapped(const RowOp& op);
    void push_rows(const RowOp& op, std::int64_t num_written);
    void check_rows_agree() const;
    void push_linear(const View& x, View out, const LinearWeight& w, const float* bias, bool accumulate, float scale);
    void push_cast(View from, View to);
    View detour(const View& out, std::int64_t rows);
    static bool q8_fits(const View& v, std::int64_t unit);
    static void check_q8(const View& v);
    void need_scratch(std::size_t bytes);
    std::int32_t expert_plan_for(std::int64_t experts, std::int64_t chosen);
    std::int32_t plan_for(std::int32_t group, std::int32_t heads_per_kv);

    void find_segments();
    void place_extra();

    Executable& exe_;
    const ExecutableSpec& spec_;
    const OpSpec* op_ = nullptr;
    std::size_t next_ = 0;
    std::int64_t index_ = 0;
    char domain_ = 'T';                  // rows of the buffer read last,
    std::int64_t times_ = 1;             // and how many for each of them
    std::vector<std::int64_t> touched_;  // buffers of the op at hand
    std::vector<std::int64_t> stage_buffers_;
    std::int64_t sorted_ids_ = -1;  // buffer whose rows the last sort stage sorted, while that still holds
    std::int64_t widest_ = 0, extra_bytes_ = 0, partial_stride_ = 16;
};

}  // namespace octavo
