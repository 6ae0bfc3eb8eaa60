// Who takes which items of a piece of work. Every thread has a home, the same share of the items each time; who has
// emptied his own takes what is left in the others'. So a thread streams weights that lie behind each other, the same
// ones in every step (what one asked its cache or, on several NUMA nodes, its memory for is not another's), and none
// waits while another has items left.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace octavo {

class Homes {
public:
    // `works` pieces of work, each shared by `threads`.
    Homes(std::size_t works, int threads)
        : threads_(threads), taken_(std::make_unique<Taken[]>(works * static_cast<std::size_t>(threads))) {}

    // Nothing is taken. Before the team begins.
    void reset(std::size_t work) {
        for (int home = 0; home < threads_; home++) at(work, home).store(0, std::memory_order_relaxed);
    }

    // Calls f(item) for the items that this thread gets; how many. All have been taken by somebody when it returns.
    // A home's items are neighbours, or (dealt) every so-manieth one: for items that come in order of their cost.
    template <class F>
    std::int64_t each(std::size_t work, std::int64_t items, bool dealt, int thread, F&& f) {
        std::int64_t did = 0;
        for (int i = 0; i < threads_; i++) {
            const int home = thread + i < threads_ ? thread + i : thread + i - threads_;
            const std::int64_t begin = items * home / threads_, end = items * (home + 1) / threads_;
            const std::int64_t count = dealt ? (items - home + threads_ - 1) / threads_ : end - begin;
            std::atomic<std::int64_t>& taken = at(work, home);
            for (;;) {
                const std::int64_t n = taken.fetch_add(1, std::memory_order_relaxed);
                if (n >= count) break;
                f(dealt ? home + n * threads_ : begin + n);
                did++;
            }
        }
        return did;
    }

private:
    struct alignas(64) Taken {
        std::atomic<std::int64_t> value{0};
    };
    std::atomic<std::int64_t>& at(std::size_t work, int home) {
        return taken_[work * static_cast<std::size_t>(threads_) + static_cast<std::size_t>(home)].value;
    }

    int threads_;
    std::unique_ptr<Taken[]> taken_;
};

}  // namespace octavo
