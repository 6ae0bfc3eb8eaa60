// The kernels of this instruction set, gathered for the runtime.
#include "octavo/kernels.h"

#define OCTAVO_STRING_(x) #x
#define OCTAVO_STRING(x) OCTAVO_STRING_(x)

namespace octavo::OCTAVO_ISA_NS {

void run_rows(const RowOp& op, std::int64_t first, std::int64_t last, float* scratch);
void attend_item(const AttendOp& op, const AttendItem& item, const AttendItem* then, std::uint8_t* scratch);
void attend_fold(const AttendOp& op, const AttendSplit& split, std::uint8_t* scratch);
LogitScan scan_logits(const float* x, std::int64_t n);
void exp_logits(const float* x, std::int64_t n, float temperature, float top, float* e, float* sums);
void sum_pieces(float* e, std::int64_t n, float* sums);

extern const Kernels kKernels;
const Kernels kKernels = {OCTAVO_STRING(OCTAVO_ISA_NS),
                          run_rows,
                          attend_item,
                          attend_fold,
                          scan_logits,
                          exp_logits,
                          sum_pieces,
                          linear_panels,
                          quantize_row,
                          quantize_token,
                          dequantize_row};

}  // namespace octavo::OCTAVO_ISA_NS
