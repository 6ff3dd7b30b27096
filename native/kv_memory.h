// Keys and values of one layer as they are kept.
#pragma once

#include <cstdint>

namespace aquiline {

struct KernelTable;

// int8 is symmetric, with one scale for each head of each slot: a number is about its integer times the scale.
enum class KVType { float32, bfloat16, int8 };

inline int bytes_per_number(KVType type) { return type == KVType::float32 ? 4 : type == KVType::bfloat16 ? 2 : 1; }

// The keys or the values of one layer.
struct StoredHeads {
    void* numbers = nullptr;  // [num_slots, num_kv_heads, head_dim], contiguous
    float* scales = nullptr;  // [num_slots, num_kv_heads], contiguous; only with int8
};

struct KVMemory {
    StoredHeads keys;
    StoredHeads values;
    KVType type = KVType::bfloat16;
};

// Keep `count` heads of `head_dim` numbers, one behind the other, from head number `first_head` of `stored` on.
void store_heads(const KernelTable& kernels, const float* heads, int count, int head_dim, KVType type,
                 const StoredHeads& stored, std::int64_t first_head);

}  // namespace aquiline
