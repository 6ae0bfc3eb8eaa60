// Linears and heads: a stage each, and a cast behind those whose output the kernel cannot write.
#include <algorithm>

#include "executable_parser.h"

namespace octavo {

void Executable::Parser::add_linear() {
    const View x = whole();
    const View out = view();
    const LinearWeight w = matrix();
    const float* bias = optional_vector(w.n);
    const bool accumulate = integer() != 0;
    push_linear(x, out, w, bias, accumulate, static_cast<float>(number()));
}

void Executable::Parser::add_head() {
    const View x = whole();
    const View out = whole();
    check_spec(out.dtype == Dtype::f32 && domain_ == 'R' && out.columns == spec_.vocab,
               "head: logits are f32[R, vocab]");
    const LinearWeight w = matrix();
    exe_.logits_ = out;
    push_linear(x, out, w, nullptr, false, 1.0f);
}

void Executable::Parser::push_linear(const View& x, View out, const LinearWeight& w, const float* bias, bool accumulate,
                                     float scale) {
    check_rows_agree();
    check_spec(x.dtype == rows_for(w.format), "linear: the activation dtype is not the format's");
    check_spec(x.columns == w.k && columns_of(out) == w.n, "linear: shapes");
    check_spec(!accumulate || (out.dtype == Dtype::f32 && out.dense), "linear: accumulate needs a dense f32 output");
    check_q8(out);
    const View to = out;
    const bool indirect = !out.dense || out.dtype == Dtype::q8 || out.dtype == Dtype::q8t;
    if (indirect) out = detour(out, rows_of(domain_) * times_);
    const std::int64_t unit = out.dtype == Dtype::f32 ? 4 : 2;
    Stage& s = new_stage(StageKind::linear);
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
    need_scratch(linear_scratch_bytes(w.format, static_cast<std::size_t>(w.k)));
    if (indirect) push_cast(out, to);
}

}  // namespace octavo
