// Which thread takes which items of a piece of work. Every thread has a home, the same share of the items each time;
// one that has emptied its own takes what is left in the others'. So a thread streams weights that lie behind each
// other, the same ones in every step (what one asked its cache or, on several NUMA nodes, its memory for is not
// another's), and none waits while another has items left.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "octavo/padded.h"

namespace octavo {

class Homes {
public:
    // `works` pieces of work, each shared by `threads`.
    Homes(std::size_t works, int threads)
        : threads_(threads), turn_(works), taken_(2 * works * static_cast<std::size_t>(threads)) {}

    // Before the team begins a piece of work: nothing of it is taken.
    void begin(std::size_t work) { turn_[work] ^= 1; }
    // After a run that some thread left early.
    void reset() {
        for (auto& taken : taken_) taken.value.store(0, std::memory_order_relaxed);
    }

    // Calls f(item) for the items that this thread gets; how many. Every item has been taken when it returns. All
    // threads call it once for each `begin`. A home's items are neighbours, or with `dealt` every n-th of n threads',
    // for items that come in order of their cost.
    template <class F>
    std::int64_t each(std::size_t work, std::int64_t items, bool dealt, int thread, F&& f) {
        // Each turn counts in one of two sets, and clears its own place in the other for the turn to come: one thread
        // that cleared all of them before each step would fetch every line from the thread that wrote it last.
        const unsigned turn = turn_[work];
        at(work, turn ^ 1, thread).store(0, std::memory_order_relaxed);
        std::int64_t did = 0;
        for (int i = 0; i < threads_; i++) {
            const int home = thread + i < threads_ ? thread + i : thread + i - threads_;
            const std::int64_t begin = items * home / threads_, end = items * (home + 1) / threads_;
            const std::int64_t count = dealt ? (items - home + threads_ - 1) / threads_ : end - begin;
            std::atomic<std::int64_t>& taken = at(work, turn, home);
            // A look is cheap where the home has long been empty; taking a number writes the line.
            while (taken.load(std::memory_order_relaxed) < count) {
                const std::int64_t n = taken.fetch_add(1, std::memory_order_relaxed);
                if (n >= count) break;
                f(dealt ? home + n * threads_ : begin + n);
                did++;
            }
        }
        return did;
    }

private:
    std::atomic<std::int64_t>& at(std::size_t work, unsigned turn, int home) {
        return taken_[(2 * work + turn) * static_cast<std::size_t>(threads_) + static_cast<std::size_t>(home)].value;
    }

    int threads_;
    std::vector<unsigned char> turn_;
    std::vector<Padded<std::int64_t>> taken_;
};

}  // namespace octavo
