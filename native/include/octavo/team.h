// A team of threads that runs one function at a time. The caller is thread 0.
//
//   run(f):    thread 0 ──publish──> f(0) ──join──> returns a status
//              thread i   (spin ~1 ms, then futex)  f(i)
//
// Between busy steps nobody parks; an idle team costs nothing. Waiting is pause, and sched_yield every 64th time, so
// that a front end on the same cores gets its turn.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "octavo/padded.h"

namespace octavo {

class Team {
public:
    // Thread i > 0 runs on the CPUs cpus[i], on any where there are none. The caller, thread 0, stays as it is.
    explicit Team(int threads, const std::vector<std::vector<int>>& cpus = {});
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int threads() const { return threads_; }
    void close();

    // Calls f(context, thread) on every thread, with denormals flushed. An exception in any of them ends up as
    // std::runtime_error here, after all have left; while one is unwinding the others see it where they wait.
    using Function = void (*)(void* context, int thread);
    void run(Function f, void* context);
    template <class F>
    void run(F&& f) {
        using Body = std::remove_reference_t<F>;
        run([](void* context, int thread) { (*static_cast<Body*>(context))(thread); }, &f);
    }

    // Inside run: waits until `done` has reached `all`. False where some thread failed: return at once then. What is
    // waited for is work, not threads: one that lost its CPU to a neighbour holds up only what it had taken.
    bool wait_until(const std::atomic<std::int64_t>& done, std::int64_t all) const;

    // Units [0, n) in pieces, balanced over threads, for work that is not part of an Executable. f(first, last,
    // thread).
    template <class F>
    void parallel_for(std::int64_t n, std::int64_t piece, F&& f) {
        std::atomic<std::int64_t> next{0};
        auto body = [&](int thread) {
            for (;;) {
                const std::int64_t first = next.fetch_add(piece, std::memory_order_relaxed);
                if (first >= n) return;
                f(first, first + piece < n ? first + piece : n, thread);
            }
        };
        run(body);
    }

private:
    void worker(int thread, const std::vector<int>& cpus);
    void guarded(int thread);
    void fail(const char* what);

    int threads_;
    bool closed_ = false;
    Function function_ = nullptr;
    void* context_ = nullptr;
    Padded<std::uint32_t> epoch_;   // run number; a change starts a run
    Padded<std::uint32_t> done_;    // workers that left the current run
    Padded<std::uint32_t> parked_;  // workers asleep on epoch_
    std::atomic<bool> stop_{false};
    std::atomic<bool> failed_{false};
    std::string what_;
    std::atomic_flag what_lock_ = ATOMIC_FLAG_INIT;
    std::vector<std::thread> workers_;
};

}  // namespace octavo
