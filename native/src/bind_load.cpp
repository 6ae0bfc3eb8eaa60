// What opening a file and making tables would take Python too long for.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <stdexcept>

#include "octavo/rope.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Offsets = nb::ndarray<std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Strings of a u64 length and as many bytes, from `start` on: where each begins and, last, where they end. Returns how
// many were found: fewer than were asked for where a length or its string is not inside `data`.
std::int64_t walk_strings(const Bytes& data, std::uint64_t start, Offsets offsets) {
    const std::uint64_t end = data.size();
    if (offsets.size() == 0 || start > end)
        throw std::invalid_argument("walk_strings: no room, or a start past the end");
    const std::size_t count = offsets.size() - 1;
    std::uint64_t at = start;
    for (std::size_t i = 0; i < count; ++i) {
        offsets.data()[i] = at;
        if (end - at < 8) return static_cast<std::int64_t>(i);
        std::uint64_t size;
        memcpy(&size, data.data() + at, 8);
        if (size > end - at - 8) return static_cast<std::int64_t>(i);
        at += 8 + size;
    }
    offsets.data()[count] = at;
    return static_cast<std::int64_t>(count);
}

void make_rope_rows(const Doubles& frequencies, double attention, std::int64_t first, std::int64_t last, Table cosines,
                    Table sines) {
    const std::int64_t width = static_cast<std::int64_t>(frequencies.size());
    for (const Table* table : {&cosines, &sines}) {
        if (first < 0 || first > last || static_cast<std::int64_t>(table->shape(0)) < last ||
            static_cast<std::int64_t>(table->shape(1)) != width) {
            throw std::invalid_argument("rope_rows: a table is [positions, frequencies], and holds the rows");
        }
    }
    nb::gil_scoped_release release;
    rope_rows(frequencies.data(), width, attention, first, last, cosines.data(), sines.data());
}

}  // namespace

void bind_load(nb::module_& m) {
    m.def("walk_strings", &walk_strings, "data"_a, "start"_a, "offsets"_a);
    m.def("rope_rows", &make_rope_rows, "frequencies"_a, "attention"_a, "first"_a, "last"_a, "cosines"_a, "sines"_a);
}

}  // namespace octavo
