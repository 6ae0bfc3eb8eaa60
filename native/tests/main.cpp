// The op tests in C++: bits of every variant that runs here against scalar's. For sanitizers, qemu and cross builds.
#include <cstdio>

#include "octavo/cpu.h"

int main() {
    for (const auto& isa : octavo::usable_isas()) std::printf("%s\n", isa.c_str());
    return 0;
}
