#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "octavo/cpu.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
    m.doc() = "Octavo's native kernels; docs/dev/native-abi.md describes the interface.";
    m.def("isas", &octavo::usable_isas);
}
