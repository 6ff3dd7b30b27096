// Keys and values of all layers of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace aquiline {

struct ModelMemory {
    std::vector<KVMemory> layers;
    std::int64_t num_slots;
};

// Copy rows from slots to slots in every layer; all of a layer's are read before any is written.
//
// Throws std::out_of_range if a slot does not exist, std::invalid_argument if there are not as many targets as sources.
void move_rows(const ModelMemory& memory, std::int64_t numbers_per_row, const std::vector<std::int64_t>& sources,
               const std::vector<std::int64_t>& targets);

}  // namespace aquiline
