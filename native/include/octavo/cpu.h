// Which instruction sets were compiled in, which this CPU has, and the floating-point mode kernels run under.
#pragma once
#include <string>
#include <vector>

namespace octavo {

// Usable here, worst to best, of: scalar avx2 avx512vnni avx512bf16.
const std::vector<std::string>& usable_isas();

// Why a compiled variant is not offered ("" where it is): no CPU support, or vdpbf16ps deviates from the pair chain.
std::string isa_note(const std::string& isa);

// Denormals are flushed on input and output while an object lives (docs/numerics.md); the mode before is restored.
class FlushDenormals {
public:
    FlushDenormals();
    ~FlushDenormals();
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;

private:
    unsigned long saved_;
};

}  // namespace octavo
