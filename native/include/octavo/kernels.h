// What the runtime hands to kernels, and the table of kernels that each instruction set provides. Plain structs: this
// header is included by ISA sources, so it defines no functions.
#pragma once
#include <cstddef>
#include <cstdint>

#include "octavo/linear.h"

namespace octavo {

using Dtype = RowType;

// Columns of a buffer: `heads` pieces of `width`, `stride` apart, from `offset`.
struct View {
    std::uint8_t* base;      // of row 0
    std::int64_t row_bytes;  // from row to row
    Dtype dtype;
    std::int32_t columns;  // of the buffer
    std::int32_t offset, heads, stride, width;
    bool dense;  // one run of heads * width columns
};

// One layer of a KV group. A block of a layer is K, then V, v_bytes behind it:
//   bf16  K [kv_head][dim / 2][block_size][2]   V [kv_head][block_size / 2][dim][2]
//   f32   K [kv_head][dim][block_size]          V [kv_head][block_size][dim]
//   i8    as bf16, in codes; behind V the scales [kv_head][2: K, V][block_size] in bf16
// so that 16 keys (of K) or 16 dims (of V) are one vector and a bf16 pair is one lane of it.
struct KvLayer {
    std::uint8_t* base;  // of block 0
    std::int64_t block_bytes, v_bytes;
    Dtype dtype;
    std::int32_t block_size, heads, dim;
    const float* balance;  // [heads][dim]: int8 holds k over it, and q is multiplied with it; null: ones
};

// Bytes of a number in the cache, and those of a layer in a block.
[[maybe_unused]] static constexpr std::int64_t kv_number_bytes(Dtype dtype) {
    return dtype == Dtype::f32 ? 4 : dtype == Dtype::bf16 ? 2 : 1;
}
[[maybe_unused]] static constexpr std::int64_t kv_layer_bytes(Dtype dtype, std::int64_t slots, std::int64_t heads,
                                                              std::int64_t dim) {
    return 2 * slots * heads * (dim * kv_number_bytes(dtype) + (dtype == Dtype::i8 ? 2 : 0));
}

enum class RowKind : std::int32_t { embed, norm, rope, kv_write, act, add, scale, cast, gather, route, combine };

// An op whose output row depends on one row of its inputs. Fields by kind, see rows.cpp.
struct RowOp {
    RowKind kind;
    View a, b, out;
    const float* vector;  // norm weight
    const float* cos;
    const float* sin;
    float eps;
    std::int32_t per_head, rotary;
    std::int32_t fn;             // act: 0 silu, 1 gelu, 2 gelu_tanh
    float factor, softcap;       // scale; add (of b); route
    std::int32_t norm;           // route: weights add up to factor
    const LinearWeight* weight;  // embed
    KvLayer kv;
    const std::int64_t* kv_slot;  // [T] position in the cache, block * block_size + offset
    const std::int32_t* index;    // [T or R] token (embed), position (rope), row (gather)
};

constexpr std::int32_t kMaxHead = 4096;  // width of a head
constexpr std::int32_t kSpanKeys = 512;
constexpr std::int32_t kTileKeys = 128;
// Query rows (tokens x heads of one KV head) that an attention item may hold.
constexpr std::int32_t kItemRows = 96;

// The first key that a position sees through a window; 0 is none.
[[maybe_unused]] static constexpr std::int32_t first_seen(std::int32_t window, std::int32_t position) {
    return window > 0 && position >= window ? position - window + 1 : 0;
}

struct AttendOp {
    View q, out;
    KvLayer kv;
    std::int32_t group;   // query heads per KV head
    float scale;          // times log2 e; with a cap divided by it instead
    float cap;            // times log2 e: scores become tanh(s / cap) * cap; 0: none
    std::int32_t window;  // a position sees itself and the window - 1 before it; 0: all before it
    std::int32_t max_blocks;
    const std::int32_t* table;  // [B][max_blocks]
    float* partials;            // [rows][partial_stride]: o, then m, l
    std::int64_t partial_stride;
};

// Tokens [token, token + tokens) of one sequence, one KV head, spans [span, span_end). With `rows`, `tokens` sequences
// whose tables begin alike: the token of each, and `seq` is whoever's table is read.
struct AttendItem {
    std::int32_t seq, token, tokens, position, kv_head, span, span_end;
    std::int32_t split;       // index of the split tile, -1: the item has all its spans
    std::int64_t partial;     // first partial row of this item
    std::int32_t splits = 1;  // so many split tiles from that one on have a row each in this item
    const std::int32_t* rows = nullptr;
};

// All spans of a split tile are done: fold the tokens * group rows from first_partial + i * part_rows on, i < parts.
struct AttendSplit {
    AttendItem whole;
    std::int64_t first_partial;
    std::int32_t parts;
    std::int64_t part_rows;
};

constexpr std::int64_t kVocabPiece = 1024;

struct LogitScan {
    float max;
    std::int32_t argmax;
    bool finite;
};

struct Kernels {
    const char* isa;
    // Rows [first, last) of one op. `scratch` holds 3 rows of the widest buffer.
    void (*rows)(const RowOp& op, std::int64_t first, std::int64_t last, float* scratch);
    // `then`: the item whose cache is to be on its way when this one ends; null: none.
    void (*attend)(const AttendOp& op, const AttendItem& item, const AttendItem* then, std::uint8_t* scratch);
    void (*attend_fold)(const AttendOp& op, const AttendSplit& split, std::uint8_t* scratch);
    LogitScan (*scan_logits)(const float* x, std::int64_t n);
    void (*exp_logits)(const float* x, std::int64_t n, float temperature, float top, float* e, float* sums);
    void (*sum_pieces)(float* e, std::int64_t n, float* sums);
    void (*linear_panels)(const LinearTask& task);
    void (*quantize_row)(const float* x, std::int64_t width, std::uint8_t* row);
    void (*quantize_token)(const float* x, std::int64_t width, std::uint8_t* row);
    void (*dequantize_row)(const LinearWeight& weight, std::int64_t column, float* out);
};

// The table of a variant that usable_isas() names; null for another.
const Kernels* kernels_of(const char* isa);

// Bytes of scratch a thread needs in attend (attend.cpp, `carve`).
[[maybe_unused]] static constexpr std::size_t attend_scratch_bytes(std::size_t dim, std::size_t group) {
    const std::size_t rows = (group > kItemRows ? group : kItemRows) + 16;
    const std::size_t width = round_up(dim, 16);
    return 4 * (rows * (3 * width + kTileKeys + kTileKeys / 2 + 10) + 2 * kTileKeys * (width + 1) + 16 * 16);
}

}  // namespace octavo
