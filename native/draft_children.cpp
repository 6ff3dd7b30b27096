#include "draft_children.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "adjusted_logits.h"

namespace aquiline {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct RowScores {
    const float* scores;
    float largest;
    std::vector<float> block_largest;
};

void find_blocks(const LogitKernels& kernels, int num_columns, RowScores& row) {
    row.block_largest.resize(static_cast<std::size_t>(num_blocks(num_columns)));
    kernels.block_largest(row.scores, num_columns, row.block_largest.data());
    row.largest = *std::max_element(row.block_largest.begin(), row.block_largest.end());
}

// Columns by falling score; the lower of two with the same score first. A NaN comes last, with minus infinity.
struct Order {
    const float* scores;
    float at(std::int32_t column) const { return std::isnan(scores[column]) ? kMinusInfinity : scores[column]; }
    bool operator()(std::int32_t first, std::int32_t second) const {
        const float first_score = at(first), second_score = at(second);
        return first_score > second_score || (first_score == second_score && first < second);
    }
};

// Columns among which the `width` best are: those that reach the width-th best block.
std::vector<std::int32_t> promising_columns(const RowScores& row, int num_columns, int width) {
    float cut = kMinusInfinity;
    if (width <= static_cast<int>(row.block_largest.size())) {
        std::vector<float> sorted = row.block_largest;
        std::nth_element(sorted.begin(), sorted.begin() + (width - 1), sorted.end(), std::greater<float>());
        cut = sorted[static_cast<std::size_t>(width - 1)];
    }
    std::vector<std::int32_t> found;
    for (int first = 0; first < num_columns; first += kBlockColumns) {
        if (!(row.block_largest[static_cast<std::size_t>(first / kBlockColumns)] >= cut)) continue;
        const int end = std::min(first + kBlockColumns, num_columns);
        for (int column = first; column < end; ++column) {
            if (cut == kMinusInfinity || row.scores[column] >= cut) found.push_back(column);
        }
    }
    return found;
}

}  // namespace

void best_children(ThreadPool& threads, const KernelTable& kernels, const float* draft_logits, std::int64_t row_stride,
                   int num_columns, const std::vector<LogitRow>& rows, const LogitRules& rules,
                   const std::int64_t* column_ids, int width, std::int64_t* columns, float* log_confidence) {
    if (width < 1 || width > num_columns) {
        throw std::invalid_argument("a node has 1 to " + std::to_string(num_columns) + " children, not " +
                                    std::to_string(width));
    }
    for (const LogitRow& row : rows) check_row(row, rules);
    threads.run(static_cast<int>(rows.size()), [&](int index) {
        const LogitRow& row = rows[static_cast<std::size_t>(index)];
        AdjustedRow adjusted;
        std::vector<float> noisy;
        RowScores own;
        own.scores = adjust_row(kernels.logits, draft_logits + index * row_stride, num_columns, row, rules, column_ids,
                                adjusted);
        find_blocks(kernels.logits, num_columns, own);
        const float temperature = rules.temperature_of(row.request);
        if (temperature > 0.0f) {
            noisy.resize(static_cast<std::size_t>(num_columns));
            kernels.logits.noisy_scores(own.scores, column_ids, num_columns, {own.largest, temperature}, row.key,
                                        noisy.data());
            own.scores = noisy.data();
            find_blocks(kernels.logits, num_columns, own);
        }
        std::vector<std::int32_t> best = promising_columns(own, num_columns, width);
        std::partial_sort(best.begin(), best.begin() + width, best.end(), Order{own.scores});
        std::int64_t* const out = columns + static_cast<std::int64_t>(index) * width;
        std::copy_n(best.begin(), width, out);
        if (log_confidence == nullptr) return;
        const float sum = kernels.logits.sum_of_exponentials(own.scores, num_columns, own.largest);
        const float log_sum = own.largest + std::log(sum);
        float* const confidence = log_confidence + static_cast<std::int64_t>(index) * width;
        for (int rank = 0; rank < width; ++rank) {
            const float log_share = own.scores[out[rank]] - log_sum;
            confidence[rank] = std::isnan(log_share) ? kMinusInfinity : log_share;  // a NaN would rank nowhere
        }
    });
}

}  // namespace aquiline
