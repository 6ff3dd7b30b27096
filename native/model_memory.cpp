#include "model_memory.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "bounds.h"

namespace aquiline {

namespace {

void check_slots(const std::vector<std::int64_t>& slots, std::int64_t num_slots) {
    for (const std::int64_t slot : slots) check_below(slot, num_slots, "slot");
}

void move(void* rows, std::int64_t row_bytes, const std::vector<std::int64_t>& sources,
          const std::vector<std::int64_t>& targets, std::vector<char>& buffer) {
    char* const first = static_cast<char*>(rows);
    const auto size = static_cast<std::size_t>(row_bytes);
    for (std::size_t i = 0; i < sources.size(); ++i) {
        std::memcpy(buffer.data() + i * size, first + sources[i] * row_bytes, size);
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
        std::memcpy(first + targets[i] * row_bytes, buffer.data() + i * size, size);
    }
}

}  // namespace

void ModelMemory::add_layer(const StoredHeads& keys, const StoredHeads& values) {
    const bool wants_scales = type_ == KVType::int8;
    if ((keys.scales != nullptr) != wants_scales || (values.scales != nullptr) != wants_scales) {
        throw std::invalid_argument("int8 keys and values have scales, others have none");
    }
    layers_.push_back({keys, values, type_});
}

void ModelMemory::move_rows(const std::vector<std::int64_t>& sources, const std::vector<std::int64_t>& targets) const {
    if (sources.size() != targets.size()) throw std::invalid_argument("every source needs a target");
    check_slots(sources, num_slots_);
    check_slots(targets, num_slots_);
    const std::int64_t row_bytes = static_cast<std::int64_t>(num_kv_heads_) * head_dim_ * bytes_per_number(type_);
    const std::int64_t scale_bytes = static_cast<std::int64_t>(num_kv_heads_) * sizeof(float);
    std::vector<char> buffer(sources.size() * static_cast<std::size_t>(std::max(row_bytes, scale_bytes)));
    for (const KVMemory& layer : layers_) {
        for (const StoredHeads& heads : {layer.keys, layer.values}) {
            move(heads.numbers, row_bytes, sources, targets, buffer);
            if (heads.scales != nullptr) move(heads.scales, scale_bytes, sources, targets, buffer);
        }
    }
}

}  // namespace aquiline
