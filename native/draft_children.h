// The best children of draft tree nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_table.h"
#include "logit_rules.h"
#include "thread_pool.h"

namespace aquiline {

// The `width` best columns of every row under the keyed rule: the request's bans, bias, min_tokens, penalties and
// temperature apply, and rows with a temperature get the noise with which the target will draw, keyed by target id.
//
// draft_logits: [rows.size(), num_columns] float32, not modified. column_ids: target id of each column, or null: column
// i is id i. columns: [rows.size(), width], best first, ties to the lowest column. log_confidence: [rows.size(), width],
// log-softmax of the scores at those columns, or null. Throws std::invalid_argument if width exceeds num_columns.
//
// The bits of a row depend on no other row and not on the number of threads.
void best_children(ThreadPool& threads, const KernelTable& kernels, const float* draft_logits, std::int64_t row_stride,
                   int num_columns, const std::vector<LogitRow>& rows, const LogitRules& rules,
                   const std::int64_t* column_ids, int width, std::int64_t* columns, float* log_confidence);

}  // namespace aquiline
