// Grammar, bias and bans, min_tokens and penalties: the rules that also hold for greedy rows.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_table.h"
#include "logit_rules.h"

namespace aquiline {

// Buffers for the adjusted logits of one row; kept, they are grown only once.
struct AdjustedRow {
    std::vector<float> allowed;          // what the grammar leaves
    std::vector<float> logits;
    std::vector<float> numbers;          // of the columns of a reduced vocabulary
    std::vector<std::uint8_t> flags;
};

// Whether any of these rules is in force for a row.
bool needs_adjusting(const LogitRow& row, const LogitRules& rules);

// The logits of a row after these rules: `logits` itself where none is in force, else in `buffer`.
//
// column_ids: target id of each column, or null: column i is id i.
const float* adjust_row(const LogitKernels& kernels, const float* logits, int num_columns, const LogitRow& row,
                        const LogitRules& rules, const std::int64_t* column_ids, AdjustedRow& buffer);

}  // namespace aquiline
