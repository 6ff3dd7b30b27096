// Keys and values of all layers of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "kv_memory.h"

namespace aquiline {

class ModelMemory {
public:
    // Each slot of a layer holds `num_kv_heads` keys and values of `head_dim` numbers.
    ModelMemory(KVType type, std::int64_t num_slots, int num_kv_heads, int head_dim)
        : type_(type), num_slots_(num_slots), num_kv_heads_(num_kv_heads), head_dim_(head_dim) {}

    const std::vector<KVMemory>& layers() const { return layers_; }
    std::int64_t num_slots() const { return num_slots_; }
    int num_kv_heads() const { return num_kv_heads_; }
    int head_dim() const { return head_dim_; }

    // Throws std::invalid_argument unless there are scales exactly where the type wants them.
    void add_layer(const StoredHeads& keys, const StoredHeads& values);

    // Copy rows from slots to slots in every layer; all of a layer's are read before any is written.
    //
    // Throws std::out_of_range if a slot does not exist, std::invalid_argument if there are not as many targets as
    // sources.
    void move_rows(const std::vector<std::int64_t>& sources, const std::vector<std::int64_t>& targets) const;

private:
    KVType type_;
    std::int64_t num_slots_;
    int num_kv_heads_;
    int head_dim_;
    std::vector<KVMemory> layers_;
};

}  // namespace aquiline
