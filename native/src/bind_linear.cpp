// Single kernels for tests and benchmarks: a linear, q8 and q8t rows and packed columns of any variant this CPU has.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "check.h"
#include "octavo/kernels.h"
#include "octavo/pack.h"
#include "octavo/team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableNumbers = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const Kernels& table(const std::string& isa) {
    const Kernels* kernels = kernels_of(isa.c_str());
    check(kernels != nullptr, "isa: not one of isas()");
    return *kernels;
}

LinearWeight weight_of(const std::string& format, std::int64_t n, std::int64_t k, const Bytes& packed) {
    const LinearWeight weight{format_of(format), n, k, packed.data()};
    check(n > 0 && k > 0, "n and k must be positive");
    check(weight.format != WeightFormat::int8t || k <= kMaxTokenWidth, "int8t: k above 131,072");
    check(packed.size() == packed_bytes(weight.format, static_cast<std::size_t>(n), static_cast<std::size_t>(k)),
          "weight: not packed_bytes(format, n, k) long");
    check(reinterpret_cast<std::uintptr_t>(packed.data()) % kAlign == 0, "weight: not 64-byte aligned");
    return weight;
}

std::uint8_t* aligned(std::vector<std::uint8_t>& bytes) {
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(bytes.data());
    return bytes.data() + (round_up(address, kAlign) - address);
}

// Panels split over the team; the kernel itself never knows.
void run(const Kernels& kernels, const LinearTask& task, Team& team) {
    const std::size_t scratch = linear_scratch_bytes(task.weight.format, static_cast<std::size_t>(task.weight.k));
    const std::int64_t panels = task.panel1 - task.panel0;
    std::vector<std::vector<std::uint8_t>> scratches(static_cast<std::size_t>(team.threads()),
                                                     std::vector<std::uint8_t>(scratch + kAlign));
    auto work = [&](int thread) {
        LinearTask mine = task;
        mine.panel0 = task.panel0 + panels * thread / team.threads();
        mine.panel1 = task.panel0 + panels * (thread + 1) / team.threads();
        mine.scratch = aligned(scratches[static_cast<std::size_t>(thread)]);
        if (mine.panel0 < mine.panel1) kernels.linear_panels(mine);
    };
    team.run(work);
}

void linear(Team& team, const std::string& isa, const std::string& format, std::int64_t n, std::int64_t k,
            const Bytes& weight, const Bytes& x, std::int64_t rows, MutableBytes out, bool out_bf16, bool accumulate,
            const std::optional<Numbers>& bias, std::int64_t panel0, std::int64_t panel1, float scale) {
    LinearTask task{};
    task.weight = weight_of(format, n, k, weight);
    task.x = x.data();
    task.x_stride = row_bytes(rows_for(task.weight.format), static_cast<std::size_t>(k));
    task.out = out.data();
    task.out_type = out_bf16 ? RowType::bf16 : RowType::f32;
    task.out_stride = row_bytes(task.out_type, static_cast<std::size_t>(n));
    task.accumulate = accumulate;
    task.scale = scale;
    task.row1 = rows;
    task.panel0 = panel0;
    task.panel1 = panel1 < 0 ? static_cast<std::int64_t>(panels_of(static_cast<std::size_t>(n))) : panel1;
    check(rows > 0 && x.size() == task.x_stride * static_cast<std::size_t>(rows), "x: not rows * row_bytes long");
    check(out.size() == task.out_stride * static_cast<std::size_t>(rows), "out: not rows * row_bytes long");
    check(!accumulate || !out_bf16, "accumulate: only into f32");
    check(0 <= panel0 && panel0 <= task.panel1 &&
              task.panel1 <= static_cast<std::int64_t>(panels_of(static_cast<std::size_t>(n))),
          "panels: out of range");
    if (bias) {
        check(static_cast<std::int64_t>(bias->size()) == n, "bias: not n long");
        task.bias = bias->data();
    }
    const Kernels& kernels = table(isa);
    nb::gil_scoped_release release;
    run(kernels, task, team);
}

void quantize_rows(Team& team, const std::string& isa, const Matrix& x, MutableBytes out, bool token) {
    const std::size_t rows = x.shape(0);
    const std::size_t width = x.shape(1);
    const std::size_t stride = row_bytes(token ? RowType::q8t : RowType::q8, width);
    check(out.size() == rows * stride, "out: not rows * row_bytes('q8' or 'q8t', width) long");
    const Kernels& kernels = table(isa);
    const auto quantize = token ? kernels.quantize_token : kernels.quantize_row;
    auto work = [&](int thread) {
        if (thread != 0) return;
        for (std::size_t row = 0; row < rows; ++row) {
            quantize(x.data() + row * width, static_cast<std::int64_t>(width), out.data() + row * stride);
        }
    };
    team.run(work);
}

void dequantize_row(Team& team, const std::string& isa, const std::string& format, std::int64_t n, std::int64_t k,
                    const Bytes& weight, std::int64_t column, MutableNumbers out) {
    const LinearWeight packed = weight_of(format, n, k, weight);
    check(0 <= column && column < n, "column: out of range");
    check(static_cast<std::int64_t>(out.size()) == k, "out: not k long");
    const Kernels& kernels = table(isa);
    auto work = [&](int thread) {
        if (thread == 0) kernels.dequantize_row(packed, column, out.data());
    };
    team.run(work);
}

}  // namespace

void bind_linear(nb::module_& m) {
    m.def("linear", &linear, "team"_a, "isa"_a, "format"_a, "n"_a, "k"_a, "weight"_a, "x"_a, "rows"_a, "out"_a,
          "out_bf16"_a = false, "accumulate"_a = false, "bias"_a = nb::none(), "panel0"_a = 0, "panel1"_a = -1,
          "scale"_a = 1.0f);
    m.def("quantize_rows", &quantize_rows, "team"_a, "isa"_a, "x"_a, "out"_a, "token"_a = false);
    m.def("dequantize_row", &dequantize_row, "team"_a, "isa"_a, "format"_a, "n"_a, "k"_a, "weight"_a, "column"_a,
          "out"_a);
}

}  // namespace octavo
