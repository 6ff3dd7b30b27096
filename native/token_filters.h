// Top-k, top-p and min-p over the columns of one row that can survive them.
#pragma once

#include <cstdint>
#include <vector>

#include "logit_kernels.h"

namespace aquiline {

// Filters of one row; the limits that keep everything are absent.
struct RowFilters {
    bool has_top_k = false;
    bool has_top_p = false;
    bool has_min_p = false;
    std::int64_t top_k = 0;
    double top_p = 1.0;
    float log_min_p = 0.0f;

    bool any() const { return has_top_k || has_top_p || has_min_p; }

    // Top-p then needs the mass of the whole row, else that of what top-k left.
    bool needs_mass() const { return has_top_p && !has_top_k; }
};

// Columns of a row, by rising id.
struct ListedColumns {
    std::vector<float> log_weights;
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> weights;
    std::vector<std::uint32_t> keys;
    int count = 0;
};

// A log-weight below which no filter keeps anything, so that few columns need be listed. Exactness does not depend on it.
//
// block_log_weights: the largest of each block, reordered. mass: of the whole row, where `needs_mass`.
float lowest_kept(const RowFilters& filters, std::vector<float>& block_log_weights, std::int64_t num_columns,
                  std::int64_t mass);

// Leave what the filters keep; of equally likely columns at a border the lowest ids stay.
void apply_filters(const LogitKernels& kernels, const RowFilters& filters, std::int64_t mass, ListedColumns& columns);

}  // namespace aquiline
