#include "token_filters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

namespace aquiline {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr double kWeightScale = 0x1p40;

// Columns below this weigh nothing (2^40 e^-28 < 1), and top-p keeps none of those.
constexpr float kWeightless = -28.0f;

// The last column that is kept, in the order of falling log-weight and, among equals, rising id.
struct Border {
    std::uint32_t key = std::numeric_limits<std::uint32_t>::max();
    std::int64_t num_equal = 0;  // how many with this key are kept
};

// Grows as the log-weight falls. Log-weights are at most 0, so it is the bits of their magnitude.
std::uint32_t key_of(float log_weight) {
    std::uint32_t bits;
    std::memcpy(&bits, &log_weight, sizeof bits);
    return bits & 0x7fffffffu;
}

Border top_k_border(const std::vector<std::uint32_t>& keys, int count, std::int64_t top_k) {
    std::vector<std::uint32_t> sorted(keys.begin(), keys.begin() + count);
    std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end());
    const std::uint32_t key = sorted[static_cast<std::size_t>(top_k - 1)];
    const auto num_before = std::count_if(sorted.begin(), sorted.end(), [&](std::uint32_t other) { return other < key; });
    return {key, top_k - num_before};
}

// Some bits of a key, most significant first: three digits make the whole.
struct Digit {
    int shift;
    int num_bits;
    std::uint32_t of(std::uint32_t key) const { return key >> shift & ((1u << num_bits) - 1); }
};
constexpr Digit kDigits[] = {{20, 11}, {10, 10}, {0, 10}};
constexpr int kMaxBuckets = 1 << 11;

// The first column at which the weights add up to `limit` is the last one kept: a column is kept while those before it
// stay below. Found digit by digit, so nothing is sorted.
Border top_p_border(const ListedColumns& columns, double limit) {
    std::array<std::int64_t, kMaxBuckets> masses;
    std::vector<int> inside(static_cast<std::size_t>(columns.count));  // columns that share the digits found so far
    std::iota(inside.begin(), inside.end(), 0);
    std::int64_t before = 0;
    std::uint32_t key = 0;
    for (const Digit& digit : kDigits) {
        masses.fill(0);
        for (const int i : inside) masses[digit.of(columns.keys[i])] += columns.weights[i];
        const std::uint32_t num_buckets = 1u << digit.num_bits;
        std::uint32_t bucket = 0;
        while (bucket < num_buckets && static_cast<double>(before + masses[bucket]) < limit) before += masses[bucket++];
        if (bucket == num_buckets) return {};
        key |= bucket << digit.shift;
        inside.erase(std::remove_if(inside.begin(), inside.end(),
                                    [&](int i) { return digit.of(columns.keys[i]) != bucket; }),
                     inside.end());
    }
    Border border{key, 0};
    for (const int i : inside) {
        if (static_cast<double>(before) >= limit) break;
        before += columns.weights[i];
        ++border.num_equal;
    }
    return border;
}

void keep_until(const Border& border, ListedColumns& columns) {
    std::int64_t num_equal = 0;
    std::size_t num_kept = 0;
    for (int i = 0; i < columns.count; ++i) {
        const auto place = static_cast<std::size_t>(i);
        const std::uint32_t key = columns.keys[place];
        if (key > border.key || (key == border.key && num_equal++ >= border.num_equal)) continue;
        columns.log_weights[num_kept] = columns.log_weights[place];
        columns.ids[num_kept] = columns.ids[place];
        columns.keys[num_kept++] = key;
    }
    columns.count = static_cast<int>(num_kept);
}

void keep_likely(float log_min_p, ListedColumns& columns) {
    std::size_t num_kept = 0;
    for (int i = 0; i < columns.count; ++i) {
        const auto place = static_cast<std::size_t>(i);
        if (!(columns.log_weights[place] >= log_min_p)) continue;
        columns.log_weights[num_kept] = columns.log_weights[place];
        columns.ids[num_kept++] = columns.ids[place];
    }
    columns.count = static_cast<int>(num_kept);
}

}  // namespace

float lowest_kept(const RowFilters& filters, std::vector<float>& block_log_weights, std::int64_t num_columns,
                  std::int64_t mass) {
    float cut = kMinusInfinity;
    if (filters.has_top_k && filters.top_k <= static_cast<std::int64_t>(block_log_weights.size())) {
        // As many columns as there are blocks reach the best of their block, so the k-th best of those is a bound.
        const auto place = block_log_weights.begin() + (filters.top_k - 1);
        std::nth_element(block_log_weights.begin(), place, block_log_weights.end(), std::greater<float>());
        cut = *place;
    } else if (filters.needs_mass()) {
        // Columns that weigh less than 1 / num_columns of half of what top-p leaves out cannot fill up that half.
        const double left_out = 1.0 - filters.top_p;
        const double share = 0.5 * left_out * static_cast<double>(mass) / (kWeightScale * static_cast<double>(num_columns));
        cut = left_out > 1e-9 && share > 0.0 ? static_cast<float>(std::log(share)) : kWeightless;
        cut = std::max(cut, kWeightless);
    }
    // Top-p needs the mass of all that top-k keeps, so only min-p alone can raise the bound.
    if (filters.has_min_p && !filters.has_top_k && !filters.has_top_p) cut = filters.log_min_p;
    return std::isnan(cut) ? kMinusInfinity : cut;
}

void apply_filters(const LogitKernels& kernels, const RowFilters& filters, std::int64_t mass, ListedColumns& columns) {
    if (columns.count == 0) return;
    if (filters.has_top_k || filters.has_top_p) {
        columns.keys.resize(static_cast<std::size_t>(columns.count));
        std::transform(columns.log_weights.begin(), columns.log_weights.begin() + columns.count, columns.keys.begin(), key_of);
    }
    if (filters.has_top_k && filters.top_k < columns.count) {
        keep_until(top_k_border(columns.keys, columns.count, filters.top_k), columns);
    }
    if (filters.has_top_p) {
        columns.weights.resize(static_cast<std::size_t>(columns.count));
        kernels.integer_weights(columns.log_weights.data(), columns.count, columns.weights.data());
        if (filters.has_top_k) {
            mass = 0;
            for (int i = 0; i < columns.count; ++i) mass += columns.weights[static_cast<std::size_t>(i)];
        }
        keep_until(top_p_border(columns, filters.top_p * static_cast<double>(mass)), columns);
    }
    if (filters.has_min_p) keep_likely(filters.log_min_p, columns);
}

}  // namespace aquiline
