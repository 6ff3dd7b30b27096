// Memory that a forward keeps from step to step.
#pragma once

#include <cstdint>

#include "aligned_memory.h"
#include "linear_stack.h"
#include "thread_pool.h"

namespace aquiline {

// Rows of floats; grows to the largest step it has seen. Growing forgets what it held.
class RowMatrix {
public:
    void resize(int num_rows, int width) {
        width_ = width;
        const std::size_t size = static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(width);
        if (memory_.size() < size) memory_ = AlignedMemory<float>(size);
    }
    float* row(int index) const { return memory_.data() + static_cast<std::int64_t>(index) * width_; }
    int width() const { return width_; }

private:
    AlignedMemory<float> memory_;
    int width_ = 0;
};

// Call body(row) for every row, on several threads when there is enough work to pay for waking them.
template <class Body>
void for_rows(ThreadPool& threads, int num_rows, int numbers_per_row, const Body& body) {
    constexpr std::int64_t kWorthSharing = 2048;
    constexpr int kMaxRowsPerTask = 4;
    if (num_rows == 1 || static_cast<std::int64_t>(num_rows) * numbers_per_row < kWorthSharing) {
        for (int row = 0; row < num_rows; ++row) body(row);
        return;
    }
    const int share = (num_rows + threads.num_threads() - 1) / threads.num_threads();
    const int rows_per_task = share < kMaxRowsPerTask ? share : kMaxRowsPerTask;
    threads.run((num_rows + rows_per_task - 1) / rows_per_task, [&](int task) {
        const int end = (task + 1) * rows_per_task;
        for (int row = task * rows_per_task; row < (end < num_rows ? end : num_rows); ++row) body(row);
    });
}

// Buffers of a decoder layer; every layer of a forward uses the same ones.
struct LayerWorkspace {
    RowMatrix query_key_value;
    RowMatrix mixed;
    RowMatrix gate_up;
    StackInput attention_input;
    StackInput output_input;
    StackInput mlp_input;
    StackInput down_input;
};

}  // namespace aquiline
