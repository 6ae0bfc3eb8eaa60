#include <cstring>

#include "octavo/kernels.h"

namespace octavo {

#if defined(OCTAVO_HAVE_SCALAR)
namespace scalar {
extern const Kernels kKernels;
}
#endif
#if defined(OCTAVO_HAVE_AVX2)
namespace avx2 {
extern const Kernels kKernels;
}
#endif
#if defined(OCTAVO_HAVE_AVX512VNNI)
namespace avx512vnni {
extern const Kernels kKernels;
}
#endif
#if defined(OCTAVO_HAVE_AVX512BF16)
namespace avx512bf16 {
extern const Kernels kKernels;
}
#endif

const Kernels* kernels_of(const char* isa) {
    static const Kernels* const all[] = {
#if defined(OCTAVO_HAVE_SCALAR)
        &scalar::kKernels,
#endif
#if defined(OCTAVO_HAVE_AVX2)
        &avx2::kKernels,
#endif
#if defined(OCTAVO_HAVE_AVX512VNNI)
        &avx512vnni::kKernels,
#endif
#if defined(OCTAVO_HAVE_AVX512BF16)
        &avx512bf16::kKernels,
#endif
    };
    for (const Kernels* k : all)
        if (std::strcmp(k->isa, isa) == 0) return k;
    return nullptr;
}

}  // namespace octavo
