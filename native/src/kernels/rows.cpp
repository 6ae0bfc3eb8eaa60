// Ops whose output row depends on one row of their inputs (docs/numerics.md, "Rows"). All compute in f32 and round once
// to the output's dtype.
#include "rows.h"

#include "experts.h"
#include "octavo/math.h"
#include "rotate.h"

namespace octavo::OCTAVO_ISA_NS {
namespace {

float sum_of_squares(const float* x, std::int32_t n) {
    f32x16 lanes = zero_f32();
    std::int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const f32x16 v = load(x + i);
        lanes = fma(v, v, lanes);
    }
    if (i < n) {
        const f32x16 v = load_first(x + i, n - i);  // absent lanes add +0
        lanes = fma(v, v, lanes);
    }
    return fold_add(lanes);
}

void norm_row(const float* x, const float* w, std::int32_t n, float eps, float* y) {
    const f32x16 mean = div(set1(sum_of_squares(x, n)), set1(static_cast<float>(n)));
    const f32x16 r = div(set1(1.0f), sqrt(add(mean, set1(eps))));
    std::int32_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, mul(mul(load(x + i), r), load(w + i)));
    if (i < n) store_first(y + i, mul(mul(load_first(x + i, n - i), r), load_first(w + i, n - i)), n - i);
}

// a: x; out; vector: weight; eps; per_head: each head by itself (the weight has the head's width).
void norm(const RowOp& op, std::int64_t row, float* scratch, std::int64_t stride) {
    const float* x = read_row(op.a, row, scratch);
    float* y = begin_row(op.out, row, scratch + stride);
    const std::int32_t n = op.per_head ? op.a.width : op.a.heads * op.a.width;
    for (std::int32_t done = 0; done < op.a.heads * op.a.width; done += n)
        norm_row(x + done, op.vector, n, op.eps, y + done);
    write_row(op.out, row, y);
}

// a: x; out; cos, sin [position][rotary / 2]; index: position. Pairs i with i + rotary / 2; the rest is copied.
void rope(const RowOp& op, std::int64_t row, float* scratch, std::int64_t stride) {
    const float* x = read_row(op.a, row, scratch);
    float* y = begin_row(op.out, row, scratch + stride);
    const std::int32_t half = op.rotary / 2, width = op.a.width;
    const float* cos = op.cos + static_cast<std::int64_t>(op.index[row]) * half;
    const float* sin = op.sin + static_cast<std::int64_t>(op.index[row]) * half;
    for (std::int32_t h = 0; h < op.a.heads; h++) {
        const float* xh = x + h * width;
        float* yh = y + h * width;
        for (std::int32_t i = 0; i < half; i += 16) {
            const std::int32_t n = half - i < 16 ? half - i : 16;
            const f32x16 c = load_first(cos + i, n), s = load_first(sin + i, n);
            const f32x16 x0 = load_first(xh + i, n), x1 = load_first(xh + half + i, n);
            store_first(yh + i, fma(x0, c, neg(mul(x1, s))), n);
            store_first(yh + half + i, fma(x0, s, mul(x1, c)), n);
        }
        if (xh != yh)
            for (std::int32_t i = op.rotary; i < width; i++) yh[i] = xh[i];
    }
    write_row(op.out, row, y);
}

// n numbers of a head, rotated, to codes: number d at (d / pair) * stride + d % pair. Returns the bits of their scale,
// a bf16.
std::uint16_t write_codes(const float* head, const float* balance, std::int64_t n, std::int8_t* out, std::int64_t pair,
                          std::int64_t stride) {
    float x[kMaxHead];
    memcpy(x, head, 4 * static_cast<std::size_t>(n));
    if (balance)
        for (std::int64_t d = 0; d < n; d++) x[d] /= balance[d];
    rotate(x, n);
    i32x16 top = zero_i32();
    for (std::int64_t d = 0; d < n; d += 16)
        top = max(top, as_i32(abs(load_first(x + d, n - d < 16 ? static_cast<int>(n - d) : 16))));
    // As integers the magnitudes have an order that keeps infinities and NaNs on top.
    const float amax = float_of(static_cast<std::uint32_t>(fold_max_i32(top)));
    const bool finite = amax < __builtin_inff(), zero = amax < 0x1p-100f;
    const auto scale = static_cast<std::uint16_t>(!finite ? 0x7fc0
                                                  : zero  ? 0
                                                          : (bits_of(amax / 127.0f) + 0xffff) >> 16);
    const f32x16 inverse = set1(finite && !zero ? 1.0f / bf16_to_f32(scale) : 0.0f);
    alignas(16) std::int8_t codes[16];
    for (std::int64_t d = 0; d < n; d += 16) {
        const int count = n - d < 16 ? static_cast<int>(n - d) : 16;
        store_i8(codes, finite ? to_i32(mul(load_first(x + d, count), inverse)) : zero_i32());
        for (std::int64_t i = 0; i < count; i++) out[(d + i) / pair * stride + (d + i) % pair] = codes[i];
    }
    return scale;
}

// a: k, b: v; kv, kv_slot.
void kv_write(const RowOp& op, std::int64_t row, float* scratch, std::int64_t stride) {
    const KvLayer& kv = op.kv;
    const float* k = read_row(op.a, row, scratch);
    const float* v = read_row(op.b, row, scratch + stride);
    const std::int64_t slot = op.kv_slot[row], size = kv.block_size, dim = kv.dim;
    const std::int64_t at = slot % size;
    std::uint8_t* block = kv.base + slot / size * kv.block_bytes;
    if (kv.dtype == Dtype::f32) {
        auto* kd = reinterpret_cast<float*>(block);
        auto* vd = reinterpret_cast<float*>(block + kv.v_bytes);
        for (std::int64_t h = 0; h < kv.heads; h++, k += dim, v += dim) {
            for (std::int64_t d = 0; d < dim; d++) kd[(h * dim + d) * size + at] = k[d];
            memcpy(vd + (h * size + at) * dim, v, 4 * static_cast<std::size_t>(dim));
        }
        return;
    }
    if (kv.dtype == Dtype::i8) {
        auto* kd = reinterpret_cast<std::int8_t*>(block);
        auto* vd = reinterpret_cast<std::int8_t*>(block + kv.v_bytes);
        auto* scales = reinterpret_cast<std::uint16_t*>(block + 2 * kv.v_bytes);
        for (std::int64_t h = 0; h < kv.heads; h++, k += dim, v += dim) {
            scales[2 * h * size + at] = write_codes(k, kv.balance ? kv.balance + h * dim : nullptr, dim,
                                                    kd + h * dim * size + 2 * at, 2, 2 * size);
            scales[(2 * h + 1) * size + at] =
                write_codes(v, nullptr, dim, vd + (h * (size / 2) + at / 2) * dim * 2 + at % 2, 1, 2);
        }
        return;
    }
    auto* kd = reinterpret_cast<std::uint16_t*>(block);
    auto* vd = reinterpret_cast<std::uint16_t*>(block + kv.v_bytes);
    alignas(64) std::uint16_t half[16];
    for (std::int64_t h = 0; h < kv.heads; h++, k += dim, v += dim) {
        std::uint16_t* kh = kd + h * dim * size + 2 * at;
        std::uint16_t* vh = vd + (h * (size / 2) + at / 2) * dim * 2 + at % 2;
        for (std::int64_t d = 0; d < dim; d += 16) {
            const int n = dim - d < 16 ? static_cast<int>(dim - d) : 16;
            store_bf16(half, load_first(k + d, n));
            for (int i = 0; i < n; i += 2) memcpy(kh + (d + i) / 2 * size * 2, half + i, 4);
            store_bf16(half, load_first(v + d, n));
            for (int i = 0; i < n; i++) vh[(d + i) * 2] = half[i];
        }
    }
}

using Function = f32x16 (*)(f32x16, f32x16);

// a: gate, b: up.
template <Function fn>
void act(const RowOp& op, std::int64_t row, float* scratch, std::int64_t stride) {
    const float* g = read_row(op.a, row, scratch);
    const float* u = read_row(op.b, row, scratch + stride);
    float* y = begin_row(op.out, row, scratch + 2 * stride);
    const std::int32_t n = op.a.heads * op.a.width;
    std::int32_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, fn(load(g + i), load(u + i)));
    if (i < n) store_first(y + i, fn(load_first(g + i, n - i), load_first(u + i, n - i)), n - i);
    write_row(op.out, row, y);
}

// a, b; factor: of b.
void add_rows(const RowOp& op, std::int64_t row, float* scratch, std::int64_t stride) {
    const float* a = read_row(op.a, row, scratch);
    const float* b = read_row(op.b, row, scratch + stride);
    float* y = begin_row(op.out, row, scratch + 2 * stride);
    const std::int32_t n = op.a.heads * op.a.width;
    std::int32_t i = 0;
    const f32x16 factor = set1(op.factor);
    for (; i + 16 <= n; i += 16) store(y + i, add(load(a + i), mul(load(b + i), factor)));
    if (i < n) store_first(y + i, add(load_first(a + i, n - i), mul(load_first(b + i, n - i), factor)), n - i);
    write_row(op.out, row, y);
}

// a: x; factor; softcap: 0 for none.
void scale(const RowOp& op, std::int64_t row, float* scratch, std::int64_t stride) {
    const float* x = read_row(op.a, row, scratch);
    float* y = begin_row(op.out, row, scratch + stride);
    const std::int32_t n = op.a.heads * op.a.width;
    const f32x16 factor = set1(op.factor), cap = set1(op.softcap);
    for (std::int32_t i = 0; i < n; i += 16) {
        const std::int32_t left = n - i < 16 ? n - i : 16;
        f32x16 v = mul(load_first(x + i, left), factor);
        if (op.softcap > 0) v = mul(cap, tanh_of(div(v, cap)));
        store_first(y + i, v, left);
    }
    write_row(op.out, row, y);
}

void embed(const RowOp& op, std::int64_t row, float* scratch) {
    float* y = begin_row(op.out, row, scratch);
    dequantize_row(*op.weight, op.index[row], y);
    write_row(op.out, row, y);
}

using RowKernel = void (*)(const RowOp&, std::int64_t, float*, std::int64_t);
constexpr RowKernel kActs[] = {act<silu_mul>, act<gelu_mul>, act<gelu_tanh_mul>};  // by RowOp::fn

}  // namespace

void run_rows(const RowOp& op, std::int64_t first, std::int64_t last, float* scratch) {
    std::int64_t widest = op.out.columns;
    if (op.a.columns > widest) widest = op.a.columns;
    if (op.b.columns > widest) widest = op.b.columns;
    const std::int64_t stride = (widest + 31) / 16 * 16;
    for (std::int64_t row = first; row < last; row++) {
        switch (op.kind) {
            case RowKind::embed: embed(op, row, scratch); break;
            case RowKind::norm: norm(op, row, scratch, stride); break;
            case RowKind::rope: rope(op, row, scratch, stride); break;
            case RowKind::kv_write: kv_write(op, row, scratch, stride); break;
            case RowKind::act: kActs[op.fn](op, row, scratch, stride); break;
            case RowKind::add: add_rows(op, row, scratch, stride); break;
            case RowKind::scale: scale(op, row, scratch, stride); break;
            case RowKind::cast: write_row(op.out, row, read_row(op.a, row, scratch)); break;
            case RowKind::gather: write_row(op.out, row, read_row(op.a, op.index[row], scratch)); break;
            case RowKind::route: route(op, row, scratch, stride); break;
            case RowKind::combine: combine(op, row, scratch, stride); break;
        }
    }
}

}  // namespace octavo::OCTAVO_ISA_NS
