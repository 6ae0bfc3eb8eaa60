#include "octavo/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <stdexcept>

#include "octavo/cpu.h"

namespace octavo {
namespace {

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
}

void pin(const std::vector<int>& cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : cpus) CPU_SET(static_cast<unsigned>(cpu), &set);
    // A refusal (the CPUs left the affinity mask) only costs speed.
    (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t old) {
    syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}

constexpr auto kSpin = std::chrono::microseconds(1000);

}  // namespace

Team::Team(int threads, const std::vector<std::vector<int>>& cpus) : threads_(threads) {
    if (threads < 1 || threads > 1024) throw std::invalid_argument("threads: allowed: 1 to 1024");
    if (!cpus.empty() && cpus.size() != static_cast<std::size_t>(threads))
        throw std::invalid_argument("cpus: allowed: none, or a list for each thread");
    for (const auto& of_thread : cpus)
        for (const int cpu : of_thread)
            if (cpu < 0 || cpu >= CPU_SETSIZE) throw std::invalid_argument("cpus: no such CPU");
    try {
        for (int i = 1; i < threads; i++)
            workers_.emplace_back(&Team::worker, this, i,
                                  cpus.empty() ? std::vector<int>{} : cpus[static_cast<std::size_t>(i)]);
    } catch (...) {
        close();
        throw;
    }
}

Team::~Team() { close(); }

void Team::close() {
    if (closed_) return;
    closed_ = true;
    stop_.store(true);
    epoch_.value.fetch_add(1);
    futex_wake_all(epoch_.value);
    for (auto& t : workers_) t.join();
    workers_.clear();
}

void Team::worker(int thread, const std::vector<int>& cpus) {
    if (!cpus.empty()) pin(cpus);
    FlushDenormals flush;
    std::uint32_t seen = 0;
    for (;;) {
        auto until = std::chrono::steady_clock::now() + kSpin;
        for (unsigned i = 1; epoch_.value.load(std::memory_order_acquire) == seen; i++) {
            relax();
            if (i % 64 != 0) continue;
            sched_yield();
            if (std::chrono::steady_clock::now() < until) continue;
            parked_.value.fetch_add(1);
            futex_wait(epoch_.value, seen);
            parked_.value.fetch_sub(1);
            until = std::chrono::steady_clock::now() + kSpin;
        }
        if (stop_.load()) return;
        seen++;
        guarded(thread);
        done_.value.fetch_add(1, std::memory_order_release);
    }
}

void Team::fail(const char* what) {
    while (what_lock_.test_and_set(std::memory_order_acquire)) relax();
    if (!failed_.load()) what_ = what;
    failed_.store(true);
    what_lock_.clear(std::memory_order_release);
}

void Team::guarded(int thread) {
    try {
        function_(context_, thread);
    } catch (const std::exception& e) {
        fail(e.what());
    } catch (...) {
        fail("unknown exception");
    }
}

void Team::run(Function f, void* context) {
    if (closed_) throw std::runtime_error("the team is closed");
    function_ = f;
    context_ = context;
    failed_.store(false);
    done_.value.store(0);
    epoch_.value.fetch_add(1);  // sequentially consistent with the parked count below
    if (parked_.value.load() != 0) futex_wake_all(epoch_.value);
    {
        FlushDenormals flush;
        guarded(0);
    }
    const auto others = static_cast<std::uint32_t>(threads_ - 1);
    for (unsigned i = 1; done_.value.load(std::memory_order_acquire) != others; i++) {
        relax();
        if (i % 64 == 0) sched_yield();
    }
    if (failed_.load()) throw std::runtime_error(what_);
}

bool Team::wait_until(const std::atomic<std::int64_t>& done, std::int64_t all) const {
    for (unsigned i = 1; done.load(std::memory_order_acquire) != all; i++) {
        if (failed_.load(std::memory_order_relaxed)) return false;
        relax();
        if (i % 64 == 0) sched_yield();
    }
    return !failed_.load(std::memory_order_relaxed);
}

}  // namespace octavo
