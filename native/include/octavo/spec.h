// An Executable as program/lower.py emits it (docs/dev/native-abi.md), without Python.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "octavo/kernels.h"

namespace octavo {

struct BufferSpec {
    Dtype dtype;
    std::int64_t width;
    char rows;  // T tokens, R logit rows, B sequences
    std::int64_t offset;
    std::int64_t times = 1;  // rows of the buffer for each of those: k where a token visits k experts
};

struct WeightSpec {
    std::string format;  // vec, or one of kFormats (linear.h)
    std::int64_t n, k;
    std::uint64_t address;
};

struct KvSpec {
    Dtype dtype;
    std::int64_t block_size, kv_heads, head_dim, layers;
    std::uint64_t address;
    std::int64_t num_blocks, block_bytes;
    std::int64_t window;  // 0: none
};

struct Limits {
    std::int64_t max_tokens, max_rows, max_seqs, max_blocks, max_len;
};

struct OpSpec {
    std::string kind;
    std::vector<double> fields;  // integers up to 2^53 and floats, flattened
};

struct ExecutableSpec {
    std::vector<BufferSpec> buffers;
    std::vector<WeightSpec> weights;
    std::vector<KvSpec> kv;
    Limits limits;
    std::int64_t vocab;
    std::vector<OpSpec> ops;
    std::map<std::string, std::pair<std::int64_t, std::int64_t>> segments;
    std::uint8_t* arena;
    std::int64_t arena_bytes;
};

}  // namespace octavo
