// A number on a cache line of its own: threads that write it do not slow down those that use its neighbours.
#pragma once
#include <atomic>

namespace octavo {

template <class T>
struct alignas(64) Padded {
    std::atomic<T> value{0};
};

}  // namespace octavo
