// The rows of one forward: where each stands, where its key and value go, and what it sees.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace aquiline {

// One AttentionGroup of the Python side. Strides count elements; a stride may be 0, as in an expanded tensor.
struct AttentionGroupArrays {
    std::int64_t num_reqs = 0;
    std::int64_t num_queries = 0;
    std::int64_t context = 0;
    const std::int64_t* key_slots = nullptr;     // [num_reqs, context], contiguous
    const std::int64_t* visible_lens = nullptr;  // [num_reqs, num_queries]
    std::int64_t visible_strides[2] = {0, 0};
    const std::int64_t* path_slots = nullptr;    // [num_reqs, num_queries, path_capacity], contiguous; may be null
    std::int64_t path_capacity = 0;
    const std::int64_t* path_lens = nullptr;     // [num_reqs, num_queries]
    std::int64_t path_strides[2] = {0, 0};
};

// Cosines and sines of every position there is: [num_positions, head_dim / 2] each.
struct RotaryTable {
    const float* cosines = nullptr;
    const float* sines = nullptr;
    std::int64_t num_positions = 0;
};

struct StepRows {
    int num_rows = 0;
    const std::int64_t* positions = nullptr;  // [num_rows]
    const std::int64_t* slots = nullptr;      // [num_rows]
    std::int64_t num_slots = 0;
    RotaryTable rotary;
    int first_position = 0;
    std::vector<AttentionRow> attention;      // [num_rows]
};

// What every row of the groups sees, in row order.
//
// Throws std::out_of_range if a length does not fit its table, if a slot that a row sees is not below `num_slots`, or
// if the groups do not hold `num_rows` rows.
std::vector<AttentionRow> spread_groups(const std::vector<AttentionGroupArrays>& groups, int num_rows,
                                        int first_position, std::int64_t num_slots);

// Throws std::out_of_range if a slot or position of the step does not exist.
void check_places(const StepRows& step);

}  // namespace aquiline
