// What baseline sources share: refusing wrong arguments, and a division. Not for ISA sources.
#pragma once
#include <cstdint>
#include <stdexcept>

namespace octavo {

inline void check(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace octavo
