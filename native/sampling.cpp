#include "sampling.h"

#include <algorithm>
#include <vector>

namespace aquiline {

namespace {

// Long enough to pay for a task, short enough that one row of a large vocabulary keeps several threads busy.
constexpr std::int64_t kColumnsPerTask = 8192;

}  // namespace

void draw_tokens(ThreadPool& threads, const KernelTable& kernels, const float* scores, std::int64_t row_stride,
                 int num_rows, std::int64_t num_columns, const std::int64_t* keys, const bool* is_greedy,
                 std::int64_t* ids) {
    const int num_parts = static_cast<int>((num_columns + kColumnsPerTask - 1) / kColumnsPerTask);
    std::vector<Candidate> candidates(static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(num_parts));
    threads.run(num_rows * num_parts, [&](int task) {
        const int row = task / num_parts;
        const std::int64_t first = task % num_parts * kColumnsPerTask;
        const int count = static_cast<int>(std::min(kColumnsPerTask, num_columns - first));
        const float* part = scores + row * row_stride + first;
        if (keys == nullptr || (is_greedy != nullptr && is_greedy[row])) {
            candidates[static_cast<std::size_t>(task)] = kernels.largest(part, count, first);
        } else {
            const std::int64_t* words = keys + 2 * row;
            const NoiseKey key{static_cast<std::uint32_t>(words[0]), static_cast<std::uint32_t>(words[1])};
            candidates[static_cast<std::size_t>(task)] = kernels.largest_with_noise(part, count, first, key);
        }
    });
    for (int row = 0; row < num_rows; ++row) {
        const Candidate* parts = candidates.data() + static_cast<std::int64_t>(row) * num_parts;
        Candidate best = parts[0];
        for (int part = 1; part < num_parts; ++part) {
            if (parts[part].score > best.score) best = parts[part];
        }
        ids[row] = best.id;
    }
}

}  // namespace aquiline
