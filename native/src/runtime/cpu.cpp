#include "octavo/cpu.h"

#include "octavo/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif
#include <array>
#include <cstdint>
#include <cstring>

namespace octavo {
namespace {

#if defined(__x86_64__)
std::uint64_t xgetbv0() {
    std::uint32_t lo, hi;
    asm volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (std::uint64_t{hi} << 32) | lo;
}

struct Features {
    bool avx2 = false, vnni = false, bf16 = false;
};

Features detect() {
    Features f;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
    const bool fma = c >> 12 & 1, osxsave = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !avx) return f;
    const std::uint64_t state = xgetbv0();
    if ((state & 0x6) != 0x6) return f;  // the system saves xmm and ymm
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
    f.avx2 = (b >> 5 & 1) && fma && f16c;
    const bool zmm = (state & 0xe0) == 0xe0;
    const bool base = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);  // F, DQ, BW, VL
    f.vnni = f.avx2 && zmm && base && (c >> 11 & 1);
    unsigned a1, b1, c1, d1;
    f.bf16 = f.vnni && a >= 1 && __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) && (a1 >> 5 & 1);
    return f;
}
#endif

}  // namespace

#if defined(OCTAVO_HAVE_AVX512BF16)
namespace avx512bf16 {
bool dot_is_pair_chain();  // kernels/selftest.cpp
}
#endif

std::string isa_note(const std::string& isa) {
    if (kernels_of(isa.c_str()) == nullptr) return "no such variant is compiled in";
#if defined(__x86_64__)
    static const Features f = detect();
#if defined(OCTAVO_EMULATE_AVX512)
    if (isa != "scalar") return f.avx2 ? "" : "the emulation needs AVX2";
#endif
    if (isa == "avx2") return f.avx2 ? "" : "this CPU has no AVX2, FMA and F16C";
    if (isa == "avx512vnni") return f.vnni ? "" : "this CPU has no AVX-512 VNNI";
    if (isa == "avx512bf16") {
        if (!f.bf16) return "this CPU has no AVX-512 BF16";
#if defined(OCTAVO_HAVE_AVX512BF16)
        static const bool same = avx512bf16::dot_is_pair_chain();
        if (!same) return "vdpbf16ps of this CPU is not two ordered FMAs: the variant would give other bits";
#endif
    }
#endif
    return "";
}

const std::vector<std::string>& usable_isas() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> usable;
        for (const char* isa : {"scalar", "avx2", "avx512vnni", "avx512bf16"})
            if (isa_note(isa).empty()) usable.emplace_back(isa);
        return usable;
    }();
    return names;
}

FlushDenormals::FlushDenormals() {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
    _mm_setcsr((static_cast<unsigned>(saved_) & ~0x6000u) | 0x8040u);  // FTZ, DAZ, round to nearest even
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"((saved_ & ~0xc00000ul) | 0x1000000ul));  // FZ, round to nearest even
#else
    saved_ = 0;
#endif
}

FlushDenormals::~FlushDenormals() {
#if defined(__x86_64__)
    _mm_setcsr(static_cast<unsigned>(saved_));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" ::"r"(saved_));
#endif
}

}  // namespace octavo
