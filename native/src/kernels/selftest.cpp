// Does vdpbf16ps do what docs/numerics.md calls a pair chain, on this CPU?
#if defined(OCTAVO_ISA_AVX512BF16) && !defined(OCTAVO_EMULATE_AVX512)
#include <immintrin.h>

#include <cstdint>
#endif

namespace octavo::OCTAVO_ISA_NS {

#if defined(OCTAVO_ISA_AVX512BF16) && defined(OCTAVO_EMULATE_AVX512)
bool dot_is_pair_chain() { return true; }
#elif defined(OCTAVO_ISA_AVX512BF16)
namespace {

std::uint32_t next(std::uint64_t& state) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> 33);
}

// A bf16 in the upper half: random, or one of the edges (zeros, denormals, smallest, largest, infinity).
std::uint32_t sample(std::uint64_t& state, bool edges) {
    static const std::uint16_t kEdge[] = {0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x8080,
                                          0x7f7f, 0xff7f, 0x3f80, 0x0040, 0x1f80, 0x2080};
    const std::uint32_t r = next(state);
    if (edges) return kEdge[r % 12];
    return (r & 0x80ff) | (0x3000 + (r >> 16) % 0x1c00);
}

}  // namespace

bool dot_is_pair_chain() {
    const unsigned saved = _mm_getcsr();
    _mm_setcsr((saved & ~0x6000u) | 0x8040u);
    bool same = true;
    std::uint64_t state = 7;
    for (int round = 0; round < 4096 && same; round++) {
        alignas(64) std::uint32_t a[16], b[16], c[16];
        for (int i = 0; i < 16; i++) {
            const bool edges = round % 4 == 3;
            a[i] = sample(state, edges) | sample(state, edges) << 16;
            b[i] = sample(state, edges) | sample(state, edges) << 16;
            c[i] = round % 3 == 0 ? 0 : sample(state, edges) << 16 | (next(state) & 0xffff);
        }
        const __m512i va = _mm512_load_si512(a), vb = _mm512_load_si512(b);
        const __m512 vc = _mm512_castsi512_ps(_mm512_load_si512(c));
        const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
        const __m512 odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(va, high)),
                                           _mm512_castsi512_ps(_mm512_and_si512(vb, high)), vc);
        const __m512 want = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(va, 16)),
                                            _mm512_castsi512_ps(_mm512_slli_epi32(vb, 16)), odd);
        const __m512 got = _mm512_dpbf16_ps(vc, reinterpret_cast<__m512bh>(va), reinterpret_cast<__m512bh>(vb));
        const __mmask16 differs = _mm512_cmpneq_epi32_mask(_mm512_castps_si512(want), _mm512_castps_si512(got));
        const __mmask16 both_nan =
            _mm512_cmp_ps_mask(want, want, _CMP_UNORD_Q) & _mm512_cmp_ps_mask(got, got, _CMP_UNORD_Q);
        same = (differs & ~both_nan) == 0;
    }
    _mm_setcsr(saved);
    return same;
}
#endif

}  // namespace octavo::OCTAVO_ISA_NS
