#include "model_memory.h"

#include <cstring>
#include <stdexcept>
#include <string>

namespace aquiline {

namespace {

void check_slots(const std::vector<std::int64_t>& slots, std::int64_t num_slots) {
    for (const std::int64_t slot : slots) {
        if (slot < 0 || slot >= num_slots) {
            throw std::out_of_range("slot " + std::to_string(slot) + " is not in 0.." + std::to_string(num_slots - 1));
        }
    }
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

void move_rows(const ModelMemory& memory, std::int64_t numbers_per_row, const std::vector<std::int64_t>& sources,
               const std::vector<std::int64_t>& targets) {
    if (sources.size() != targets.size()) throw std::invalid_argument("every source needs a target");
    check_slots(sources, memory.num_slots);
    check_slots(targets, memory.num_slots);
    std::vector<char> buffer(sources.size() * static_cast<std::size_t>(numbers_per_row) * sizeof(float));
    for (const KVMemory& layer : memory.layers) {
        const std::int64_t row_bytes = numbers_per_row * (layer.is_bfloat16 ? 2 : 4);
        move(layer.keys, row_bytes, sources, targets, buffer);
        move(layer.values, row_bytes, sources, targets, buffer);
    }
}

}  // namespace aquiline
