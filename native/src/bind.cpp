// octavo._native: what docs/dev/native-abi.md describes, and nothing else. No arithmetic here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "octavo/arena.h"
#include "octavo/cpu.h"
#include "octavo/executable.h"
#include "octavo/pack.h"
#include "octavo/sampler.h"
#include "octavo/team.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace octavo;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// -- names ----------------------------------------------------------------------------------------------------------

template <class E, std::size_t N>
E named(const std::string& name, const std::pair<const char*, E> (&table)[N], const char* what) {
    std::string allowed;
    for (const auto& [known, value] : table) {
        if (name == known) return value;
        allowed += (allowed.empty() ? "" : ", ") + std::string(known);
    }
    throw std::invalid_argument(std::string(what) + ": got '" + name + "', allowed: " + allowed);
}

Dtype dtype_of(const std::string& name) {
    static constexpr std::pair<const char*, Dtype> kTable[] = {
        {"f32", Dtype::f32}, {"bf16", Dtype::bf16}, {"q8", Dtype::q8}, {"q8t", Dtype::q8t}, {"i32", Dtype::i32}};
    return named(name, kTable, "dtype");
}

Dtype kv_dtype_of(const std::string& name) {
    static constexpr std::pair<const char*, Dtype> kTable[] = {
        {"f32", Dtype::f32}, {"bf16", Dtype::bf16}, {"int8", Dtype::i8}};
    return named(name, kTable, "KV dtype");
}

std::string& chosen_isa() {
    static std::string name = usable_isas().back();
    return name;
}

void set_isa(const std::string& name) {
    const std::string note = isa_note(name);
    if (!note.empty()) throw std::invalid_argument("isa: got '" + name + "': " + note);
    chosen_isa() = name;
}

// -- packing --------------------------------------------------------------------------------------------------------

void pack_weight(const std::string& format, const std::string& source, std::int64_t n, std::int64_t k, Bytes src,
                 MutableBytes dst, std::int64_t col0, std::int64_t n_total, int threads) {
    const WeightFormat f = format_of(format);
    const SourceFormat s = source_of(source);
    check(n >= 0 && k > 0 && col0 >= 0 && col0 + n <= n_total && n_total < (std::int64_t{1} << 31) &&
              k < (std::int64_t{1} << 31),
          "pack: columns outside the weight");
    check(k % source_info(s).elements == 0, "pack: a block format's rows are multiples of its block");
    check(src.size() >= static_cast<std::size_t>(n) * source_row_bytes(s, static_cast<std::size_t>(k)),
          "pack: src is too short");
    check(dst.size() >= packed_bytes(f, static_cast<std::size_t>(n_total), static_cast<std::size_t>(k)),
          "pack: dst is too short");
    check(reinterpret_cast<std::uintptr_t>(dst.data()) % kAlign == 0, "pack: dst is not 64-byte aligned");
    const PackJob job{f, s, n, k, src.data(), dst.data(), col0, n_total};
    if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
    nb::gil_scoped_release release;
    pack(job, threads > 0 ? threads : 1);
}

void unpack_weight_rows(const std::string& format, std::int64_t n, std::int64_t k, Bytes src, Ints rows,
                        nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    const WeightFormat f = format_of(format);
    check(n > 0 && k > 0 && src.size() >= packed_bytes(f, static_cast<std::size_t>(n), static_cast<std::size_t>(k)),
          "unpack_rows: src is too short");
    check(out.shape(0) == rows.size() && out.shape(1) == static_cast<std::size_t>(k), "unpack_rows: out is [rows, k]");
    for (std::size_t i = 0; i < rows.size(); i++)
        check(rows.data()[i] >= 0 && rows.data()[i] < n, "unpack_rows: no such row");
    FlushDenormals flush;
    unpack_rows(f, n, k, src.data(), rows.data(), static_cast<std::int64_t>(rows.size()), out.data());
}

// -- executable -----------------------------------------------------------------------------------------------------

template <class T>
T field(const nb::dict& d, const char* name) {
    if (!d.contains(name)) throw std::invalid_argument(std::string("executable spec: no '") + name + "'");
    return nb::cast<T>(d[name]);
}

ExecutableSpec read_spec(const nb::dict& d) {
    ExecutableSpec spec;
    for (nb::handle item : field<nb::list>(d, "buffers")) {
        const auto [dtype, width, rows, offset, times] =
            nb::cast<std::tuple<std::string, std::int64_t, std::string, std::int64_t, std::int64_t>>(item);
        check(rows.size() == 1, "executable spec: a buffer's rows");
        spec.buffers.push_back({dtype_of(dtype), width, rows[0], offset, times});
    }
    for (nb::handle item : field<nb::list>(d, "weights")) {
        const auto [format, n, k, address] =
            nb::cast<std::tuple<std::string, std::int64_t, std::int64_t, std::uint64_t>>(item);
        spec.weights.push_back({format, n, k, address});
    }
    for (nb::handle item : field<nb::list>(d, "kv")) {
        const auto g = nb::cast<nb::dict>(item);
        spec.kv.push_back({kv_dtype_of(field<std::string>(g, "dtype")), field<std::int64_t>(g, "block_size"),
                           field<std::int64_t>(g, "kv_heads"), field<std::int64_t>(g, "head_dim"),
                           field<std::int64_t>(g, "layers"), field<std::uint64_t>(g, "address"),
                           field<std::int64_t>(g, "num_blocks"), field<std::int64_t>(g, "block_bytes"),
                           field<std::int64_t>(g, "window")});
    }
    const auto l = field<nb::dict>(d, "limits");
    spec.limits = {field<std::int64_t>(l, "max_tokens"), field<std::int64_t>(l, "max_rows"),
                   field<std::int64_t>(l, "max_seqs"), field<std::int64_t>(l, "max_blocks"),
                   field<std::int64_t>(l, "max_len")};
    spec.vocab = field<std::int64_t>(d, "vocab");
    for (nb::handle item : field<nb::list>(d, "ops")) {
        OpSpec op;
        bool first = true;
        for (nb::handle value : item) {
            if (first) {
                op.kind = nb::cast<std::string>(value);
            } else {
                op.fields.push_back(nb::cast<double>(value));
            }
            first = false;
        }
        spec.ops.push_back(std::move(op));
    }
    for (const auto& [name, range] : field<nb::dict>(d, "segments"))
        spec.segments[nb::cast<std::string>(name)] = nb::cast<std::pair<std::int64_t, std::int64_t>>(range);
    auto& arena = field<Arena&>(d, "arena");
    spec.arena = arena.data();
    spec.arena_bytes = static_cast<std::int64_t>(arena.size());
    return spec;
}

// What Python holds. Arrays own a share of the C++ object, never this one: no reference cycles.
struct PyExecutable {
    std::shared_ptr<Executable> exe;
    std::shared_ptr<Sampler> sampler;
    nb::object arena, inputs, tokens, columns, sampled, finite;

    Executable& get() const {
        if (!exe) throw std::runtime_error("the executable is closed");
        return *exe;
    }
    Sampler& sampling() const {
        get();
        return *sampler;
    }
    void close() {
        exe.reset();
        sampler.reset();
        arena = inputs = tokens = columns = sampled = finite = nb::none();
    }
};

template <class T, class Owner>
nb::object array(const std::shared_ptr<Owner>& exe, T* data, std::initializer_list<std::size_t> shape) {
    nb::capsule owner(new std::shared_ptr<Owner>(exe),
                      [](void* p) noexcept { delete static_cast<std::shared_ptr<Owner>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(data, shape, owner));
}

void make_executable(PyExecutable* self, std::shared_ptr<Team> team, const nb::dict& d) {
    const ExecutableSpec spec = read_spec(d);
    const Kernels* kernels = kernels_of(chosen_isa().c_str());
    auto exe = std::make_shared<Executable>(std::move(team), spec, *kernels);
    nb::dict inputs;
    Inputs& in = exe->inputs();
    for (auto [name, values] : {std::pair{"slot", &in.slot},
                                {"count", &in.count},
                                {"start", &in.start},
                                {"kv_len", &in.kv_len},
                                {"rows", &in.rows},
                                {"skip", &in.skip}})
        inputs[name] = array(exe, values->data(), {values->size()});
    nb::list tables;
    for (auto& table : in.table)
        tables.append(
            array(exe, table.data(),
                  {static_cast<std::size_t>(spec.limits.max_seqs), static_cast<std::size_t>(spec.limits.max_blocks)}));
    inputs["table"] = tables;
    nb::object tokens =
        array(exe, exe->tokens(),
              {static_cast<std::size_t>(spec.limits.max_seqs), static_cast<std::size_t>(spec.limits.max_len)});
    auto sampler = std::make_shared<Sampler>(exe);
    nb::dict columns;
    Columns& c = sampler->columns();
    const auto column = [&](const char* name, auto& values) {
        columns[name] = array(sampler, values.data(), {values.size()});
    };
    column("temperature", c.temperature), column("top_k", c.top_k), column("top_p", c.top_p), column("min_p", c.min_p);
    column("presence", c.presence), column("frequency", c.frequency), column("repetition", c.repetition);
    column("seed", c.seed), column("num_prompt", c.num_prompt), column("min_tokens", c.min_tokens);
    nb::object sampled = array(sampler, sampler->sampled().data(), {sampler->sampled().size()});
    nb::object finite = array(sampler, sampler->finite().data(), {sampler->finite().size()});
    new (self) PyExecutable{exe, sampler, d["arena"], inputs, tokens, columns, sampled, finite};
}

}  // namespace

namespace octavo {
void bind_linear(nb::module_& m);  // bind_linear.cpp
void bind_load(nb::module_& m);    // bind_load.cpp
}  // namespace octavo

NB_MODULE(_native, m) {
    m.doc() = "Octavo's native kernels; docs/dev/native-abi.md describes the interface.";
    octavo::bind_linear(m);
    octavo::bind_load(m);
    m.def("isas", &usable_isas);
    m.def("isa_note", &isa_note, "isa"_a);
    m.def("isa", [] { return chosen_isa(); });
    m.def("set_isa", &set_isa, "name"_a);
    m.def(
        "row_bytes",
        [](const std::string& dtype, std::int64_t width) {
            check(width > 0, "row_bytes: width");
            return row_bytes(dtype_of(dtype), static_cast<std::size_t>(width));
        },
        "dtype"_a, "width"_a);

    nb::class_<Arena>(m, "Arena")
        .def(nb::init<std::size_t, bool>(), "nbytes"_a, "huge"_a = true)
        .def_prop_ro("nbytes", &Arena::size)
        .def_prop_ro("address", [](const Arena& a) { return reinterpret_cast<std::uintptr_t>(a.data()); })
        .def("resident", &Arena::resident)
        .def(
            "fill",
            [](Arena& a, int byte) {
                nb::gil_scoped_release release;
                std::memset(a.data(), byte, a.size());
            },
            "byte"_a)
        .def(
            "touch",
            [](Arena& a, std::size_t offset, std::size_t nbytes) {
                check(offset <= a.size() && nbytes <= a.size() - offset, "Arena.touch: beyond the arena");
                nb::gil_scoped_release release;
                a.touch(offset, nbytes);
            },
            "offset"_a, "nbytes"_a)
        .def(
            "bind",
            [](Arena& a, std::size_t offset, std::size_t nbytes, const std::vector<int>& nodes) {
                check(offset <= a.size() && nbytes <= a.size() - offset, "Arena.bind: beyond the arena");
                check(!nodes.empty(), "Arena.bind: no node");
                return a.bind(offset, nbytes, nodes);
            },
            "offset"_a, "nbytes"_a, "nodes"_a)
        .def(
            "view",
            [](nb::handle self, std::size_t offset, std::size_t nbytes) {
                auto& a = nb::cast<Arena&>(self);
                check(offset <= a.size() && nbytes <= a.size() - offset, "Arena.view: beyond the arena");
                return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(a.data() + offset, {nbytes}, self);
            },
            "offset"_a, "nbytes"_a);

    nb::class_<Team>(m, "Team")
        .def(nb::init<int, const std::vector<std::vector<int>>&>(), "threads"_a,
             "cpus"_a = std::vector<std::vector<int>>())
        .def_prop_ro("threads", &Team::threads)
        .def("close", &Team::close, nb::call_guard<nb::gil_scoped_release>());

    m.def(
        "packed_bytes",
        [](const std::string& format, std::int64_t n, std::int64_t k) {
            check(n > 0 && k > 0, "packed_bytes: shape");
            return packed_bytes(format_of(format), static_cast<std::size_t>(n), static_cast<std::size_t>(k));
        },
        "format"_a, "n"_a, "k"_a);
    m.def(
        "can_pack",
        [](const std::string& format, const std::string& source) {
            return can_pack(format_of(format), source_of(source));
        },
        "format"_a, "source"_a);
    m.def("pack", &pack_weight, "format"_a, "source"_a, "n"_a, "k"_a, "src"_a, "dst"_a, "col0"_a, "n_total"_a,
          "threads"_a = 0);
    m.def("unpack_rows", &unpack_weight_rows, "format"_a, "n"_a, "k"_a, "src"_a, "rows"_a, "out"_a);

    nb::class_<PyExecutable>(m, "Executable")
        .def("__init__", &make_executable, "team"_a, "spec"_a)
        .def_ro("inputs", &PyExecutable::inputs)
        .def_ro("tokens", &PyExecutable::tokens)
        .def_ro("columns", &PyExecutable::columns)
        .def_ro("sampled", &PyExecutable::sampled)
        .def_ro("finite", &PyExecutable::finite)
        .def(
            "sample",
            [](PyExecutable& self, std::int64_t num_seqs) {
                Sampler& sampler = self.sampling();
                nb::gil_scoped_release release;
                sampler.sample(num_seqs);
            },
            "num_seqs"_a)
        .def(
            "set_bias",
            [](PyExecutable& self, std::int64_t slot, Ints ids, Floats values) {
                self.sampling().set_bias(slot, {ids.data(), ids.data() + ids.size()},
                                         {values.data(), values.data() + values.size()});
            },
            "slot"_a, "ids"_a, "values"_a)
        .def(
            "set_stops",
            [](PyExecutable& self, std::int64_t slot, Ints ids) {
                self.sampling().set_stops(slot, {ids.data(), ids.data() + ids.size()});
            },
            "slot"_a, "ids"_a)
        .def(
            "logprobs",
            [](PyExecutable& self, std::int64_t row, std::int32_t target, std::int32_t top) {
                Sampler& sampler = self.sampling();
                Sampler::Logprobs found;
                {
                    nb::gil_scoped_release release;
                    found = sampler.logprobs(row, target, top);
                }
                return std::make_tuple(found.chosen, found.rank, found.ids, found.values);
            },
            "row"_a, "target"_a, "top"_a)
        .def(
            "forward",
            [](PyExecutable& self, std::int64_t num_seqs, const nb::object& segment) {
                Executable& exe = self.get();
                const std::string name = segment.is_none() ? std::string() : nb::cast<std::string>(segment);
                nb::gil_scoped_release release;
                if (name.empty()) {
                    exe.forward(num_seqs);
                } else {
                    exe.forward(num_seqs, name);
                }
            },
            "num_seqs"_a, "segment"_a = nb::none())
        .def(
            "profile", [](PyExecutable& self, bool on) { self.get().profile(on); }, "on"_a)
        .def("timings",
             [](PyExecutable& self) {
                 nb::list out;
                 for (const auto& t : self.get().timings()) out.append(nb::make_tuple(t.ops, t.seconds, t.calls));
                 return out;
             })
        .def_prop_ro("spans_saved", [](PyExecutable& self) { return self.get().spans_saved(); })
        .def("close", &PyExecutable::close);
}
