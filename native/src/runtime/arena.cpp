#include "octavo/arena.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <new>

namespace octavo {
namespace {
constexpr std::size_t kHuge = std::size_t{2} << 20;
}

Arena::Arena(std::size_t nbytes, bool huge) : size_(nbytes) {
    mapped_ = ((nbytes + kHuge - 1) / kHuge + 1) * kHuge;
    void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    mapping_ = static_cast<std::uint8_t*>(p);
    const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
    data_ = mapping_ + ((address + kHuge - 1) / kHuge * kHuge - address);
    // A refusal only costs speed; kernels/pages.py tells how much lies on huge pages.
    if (huge) (void)madvise(data_, mapped_ - static_cast<std::size_t>(data_ - mapping_), MADV_HUGEPAGE);
}

Arena::~Arena() { munmap(mapping_, mapped_); }

std::size_t Arena::resident() const {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::size_t pages = 0;
    std::vector<unsigned char> in_memory(kHuge / page);
    for (std::size_t begin = 0; begin < size_; begin += kHuge) {
        const std::size_t length = size_ - begin < kHuge ? size_ - begin : kHuge;
        if (mincore(data_ + begin, length, in_memory.data()) != 0) continue;
        for (std::size_t i = 0; i < (length + page - 1) / page; i++) pages += in_memory[i] & 1u;
    }
    return pages * page;
}

void Arena::touch(std::size_t offset, std::size_t nbytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    for (std::size_t at = offset; at < offset + nbytes; at += page) {
        volatile std::uint8_t* byte = data_ + at;
        *byte = *byte;  // reading alone would map the system's page of zeros
    }
}

int Arena::bind(std::size_t offset, std::size_t nbytes, const std::vector<int>& nodes) {
    constexpr std::size_t kNodes = 1024, kBits = 8 * sizeof(unsigned long);
    std::array<unsigned long, kNodes / kBits> mask{};
    for (const int node : nodes) {
        if (node < 0 || node >= static_cast<int>(kNodes)) return EINVAL;
        mask[static_cast<std::size_t>(node) / kBits] |= 1ul << static_cast<std::size_t>(node) % kBits;
    }
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t first = offset / page * page, last = (offset + nbytes) / page * page;
    if (last <= first) return 0;
    // The call wants one bit more than the mask has. No wrapper in libc, and libnuma is a library more to install.
    const long mode = nodes.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
    return syscall(SYS_mbind, data_ + first, last - first, mode, mask.data(), kNodes + 1, 0u) == 0 ? 0 : errno;
}

}  // namespace octavo
