// Drawing one token for every row of scores.
#pragma once

#include <cstdint>

#include "kernel_table.h"
#include "thread_pool.h"

namespace aquiline {

// ids[row] = the argmax of scores[row], ties to the lowest id; where keys are given, of scores[row] plus the noise of
// keys[row]. A row whose `is_greedy` is true gets no noise. Scores must not be NaN.
//
// scores: [num_rows, num_columns], float32. keys: [num_rows, 2] int64 words, or null: every row is greedy. is_greedy:
// [num_rows], or null: none is.
void draw_tokens(ThreadPool& threads, const KernelTable& kernels, const float* scores, std::int64_t row_stride,
                 int num_rows, std::int64_t num_columns, const std::int64_t* keys, const bool* is_greedy,
                 std::int64_t* ids);

}  // namespace aquiline
