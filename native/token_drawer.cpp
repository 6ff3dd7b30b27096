#include "token_drawer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace aquiline {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Long enough to pay for a task, short enough that one row of a large vocabulary keeps several threads busy.
constexpr int kColumnsPerPart = 128 * kBlockColumns;

// Rows are taken together as long as their adjusted logits need no more than this.
constexpr std::int64_t kNumbersTogether = std::int64_t{1} << 23;

RowFilters filters_of(const LogitRules& rules, int request, std::int64_t num_columns) {
    RowFilters filters;
    if (rules.top_k != nullptr) {
        filters.top_k = std::max<std::int64_t>(rules.top_k[request], 1);
        filters.has_top_k = filters.top_k < num_columns;
    }
    if (rules.top_p != nullptr) {
        filters.top_p = rules.top_p[request];
        filters.has_top_p = filters.top_p < 1.0;
    }
    if (rules.log_min_p != nullptr) {
        filters.log_min_p = rules.log_min_p[request];
        filters.has_min_p = filters.log_min_p > kMinusInfinity;
    }
    return filters;
}

Candidate best_part(const std::vector<Candidate>& parts) {
    Candidate best = parts.front();
    for (const Candidate& part : parts) {
        if (part.score > best.score) best = part;
    }
    return best;
}

}  // namespace

TokenDrawer::TokenDrawer(std::shared_ptr<ThreadPool> threads)
    : threads_(std::move(threads)), kernels_(kernels_for(detected_level())) {}

void TokenDrawer::draw(const LogitMatrix& logits, const std::vector<LogitRow>& rows, const LogitRules& rules,
                       std::int64_t* ids) {
    if (logits.num_columns < 1 || logits.num_columns > std::numeric_limits<std::int32_t>::max()) {
        throw std::invalid_argument("there are no tokens to draw from, or too many");
    }
    for (const LogitRow& row : rows) check_row(row, rules);
    const std::lock_guard<std::mutex> lock(mutex_);
    num_columns_ = static_cast<int>(logits.num_columns);
    num_parts_ = (num_columns_ + kColumnsPerPart - 1) / kColumnsPerPart;
    const int num_rows = static_cast<int>(rows.size());
    const int together = static_cast<int>(std::max<std::int64_t>(1, kNumbersTogether / num_columns_));
    for (int first = 0; first < num_rows; first += together) {
        const int count = std::min(together, num_rows - first);
        const LogitMatrix own{logits.data + first * logits.stride, logits.stride, logits.num_columns};
        draw_rows(own, rows.data() + first, count, rules, ids + first);
    }
}

void TokenDrawer::draw_rows(const LogitMatrix& logits, const LogitRow* rows, int num_rows, const LogitRules& rules,
                            std::int64_t* ids) {
    const auto size = static_cast<std::size_t>(num_rows);
    if (work_.size() < size) work_.resize(size);
    bool any_adjusted = false, any_random = false, any_filtered = false;
    for (int index = 0; index < num_rows; ++index) {
        RowWork& work = work_[static_cast<std::size_t>(index)];
        start_row(logits, index, rows[index], rules, work);
        any_adjusted |= needs_adjusting(rows[index], rules);
        any_random |= !work.is_greedy();
        any_filtered |= work.filters.any();
    }
    if (any_adjusted) {
        threads_->run(num_rows, [&](int index) {
            RowWork& work = work_[static_cast<std::size_t>(index)];
            work.logits = adjust_row(kernels_.logits, work.logits, num_columns_, rows[index], rules, nullptr, work.adjusted);
        });
    }
    const auto for_parts = [&](auto&& body) {
        threads_->run(num_rows * num_parts_, [&](int task) {
            body(work_[static_cast<std::size_t>(task / num_parts_)], task % num_parts_);
        });
    };
    for_parts([this](RowWork& work, int part) { look_at_part(work, part); });
    if (any_random) {
        for (int index = 0; index < num_rows; ++index) {
            RowWork& work = work_[static_cast<std::size_t>(index)];
            if (!work.is_greedy()) work.scale.largest = best_part(work.part_best).score;
        }
        for_parts([this](RowWork& work, int part) { weigh_part(work, part); });
    }
    if (any_filtered) {
        threads_->run(num_rows, [&](int index) { ids[index] = finish_row(work_[static_cast<std::size_t>(index)]); });
    } else {
        for (int index = 0; index < num_rows; ++index) ids[index] = finish_row(work_[static_cast<std::size_t>(index)]);
    }
}

void TokenDrawer::start_row(const LogitMatrix& logits, int index, const LogitRow& row, const LogitRules& rules,
                            RowWork& work) {
    work.logits = logits.data + index * logits.stride;
    work.scale = {0.0f, rules.temperature_of(row.request)};
    work.key = row.key;
    work.filters = work.is_greedy() ? RowFilters{} : filters_of(rules, row.request, num_columns_);
    work.part_best.resize(static_cast<std::size_t>(num_parts_));
    if (work.is_greedy()) return;
    work.block_largest.resize(static_cast<std::size_t>(num_blocks(num_columns_)));
    work.part_mass.resize(static_cast<std::size_t>(num_parts_));
}

RowPart TokenDrawer::row_part(const RowWork& work, int part) const {
    const int first = part * kColumnsPerPart;
    return {work.logits + first, work.block_largest.data() + first / kBlockColumns,
            std::min(kColumnsPerPart, num_columns_ - first), first};
}

void TokenDrawer::look_at_part(RowWork& work, int part) const {
    const int first = part * kColumnsPerPart;
    const int count = std::min(kColumnsPerPart, num_columns_ - first);
    Candidate& best = work.part_best[static_cast<std::size_t>(part)];
    if (work.is_greedy()) {
        best = kernels_.largest(work.logits + first, count, first);
        return;
    }
    float* const largest = work.block_largest.data() + first / kBlockColumns;
    kernels_.logits.block_largest(work.logits + first, count, largest);
    best = {*std::max_element(largest, largest + num_blocks(count)), first};
}

void TokenDrawer::weigh_part(RowWork& work, int part) const {
    if (work.is_greedy()) return;
    const RowPart own = row_part(work, part);
    const auto place = static_cast<std::size_t>(part);
    if (!work.filters.any()) {
        work.part_best[place] = kernels_.logits.best_with_noise(own, work.scale, work.key);
    } else if (work.filters.needs_mass()) {
        work.part_mass[place] = kernels_.logits.sum_of_weights(own, work.scale);
    }
}

std::int64_t TokenDrawer::finish_row(RowWork& work) const {
    Candidate best = best_part(work.part_best);
    if (work.filters.any()) {
        work.mass = 0;
        for (const std::int64_t mass : work.part_mass) work.mass += mass;
        std::vector<float> block_log_weights(work.block_largest.size());
        std::transform(work.block_largest.begin(), work.block_largest.end(), block_log_weights.begin(), [&](float largest) {
            const float log_weight = (largest - work.scale.largest) / work.scale.temperature;
            return std::isnan(log_weight) ? kMinusInfinity : log_weight;
        });
        const float cut = lowest_kept(work.filters, block_log_weights, num_columns_, work.mass);
        const RowPart whole{work.logits, work.block_largest.data(), num_columns_, 0};
        ListedColumns& columns = work.columns;
        columns.log_weights.resize(static_cast<std::size_t>(num_columns_ + kBlockColumns));
        columns.ids.resize(columns.log_weights.size());
        columns.count = kernels_.logits.collect(whole, work.scale, cut, columns.log_weights.data(), columns.ids.data());
        apply_filters(kernels_.logits, work.filters, work.mass, columns);
        best = kernels_.logits.best_listed(columns.log_weights.data(), columns.ids.data(), columns.count, work.key);
    }
    // Logits that are infinite or no numbers leave nothing with a weight.
    if (!work.is_greedy() && !(best.score > kMinusInfinity)) best = kernels_.largest(work.logits, num_columns_, 0);
    return best.id;
}

}  // namespace aquiline
