// The op tests in C++, for sanitizers, emulated CPUs and cross builds.
#include <cstdio>
#include <cstdlib>

#include "checks.h"

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    // Positions: across 128 and 512 unless told otherwise (an emulated CPU takes minutes for that).
    const int positions = argc > 1 ? std::atoi(argv[1]) : 560;
    if (positions < 8 || positions > 600) return std::printf("usage: octavo_tests [positions, 8 to 600]\n"), 2;
    int failures = check_homes();
    failures += check_sampling();
    failures += check_schedules(positions);
    return failures != 0;
}
