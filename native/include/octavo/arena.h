// Anonymous memory that is address space until it is touched, on 2 MiB pages where the kernel gives them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

class Arena {
public:
    // Throws std::bad_alloc when the mapping is refused.
    explicit Arena(std::size_t nbytes, bool huge = true);
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    std::uint8_t* data() const { return data_; }
    std::size_t size() const { return size_; }
    // Bytes of the mapping that are in memory now.
    std::size_t resident() const;
    // Brings [offset, offset + nbytes) into memory and leaves what it holds. Nobody may write there meanwhile.
    void touch(std::size_t offset, std::size_t nbytes);
    // Says where pages of [offset, offset + nbytes) that are not touched yet shall lie: on one NUMA node while it has
    // room, or on several in turn. From the page of `offset` on, up to the last one that is whole. An errno, 0 for
    // success.
    int bind(std::size_t offset, std::size_t nbytes, const std::vector<int>& nodes);

private:
    std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
    std::uint8_t* mapping_ = nullptr;
    std::size_t mapped_ = 0;
};

}  // namespace octavo
