// Each item of each work is done once, by however many threads and however late some come, turn after turn, and also
// in the turn after one that broke off.
#include "octavo/homes.h"

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "checks.h"
#include "octavo/team.h"

using namespace octavo;

int check_homes() {
    int failures = 0;
    for (const int threads : {1, 2, 3, 7}) {
        Team team(threads);
        Homes homes(2, threads);
        for (const std::int64_t items : {0, 1, 2, 5, 64, 1000, 5}) {
            for (const bool dealt : {false, true}) {
                std::vector<std::atomic<int>> times(static_cast<std::size_t>(items));
                std::atomic<std::int64_t> did{0};
                const bool breaks = items == 64;
                for (int turn = 0; turn < (breaks ? 2 : 1); turn++) {
                    homes.begin(1);
                    try {
                        team.run([&](int thread) {
                            if (breaks && turn == 0) throw std::runtime_error("on purpose");
                            did += homes.each(1, items, dealt, thread, [&](std::int64_t item) {
                                times[static_cast<std::size_t>(item)]++;
                                if (item % 5 == 0) sched_yield();
                            });
                        });
                    } catch (const std::runtime_error&) {
                        homes.reset();
                    }
                }
                bool once = did == items;
                for (const auto& t : times) once = once && t == 1;
                if (once) continue;
                failures++;
                std::printf("FAILED homes: %d threads, %lld items\n", threads, static_cast<long long>(items));
            }
        }
    }
    return failures;
}
