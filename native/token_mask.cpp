#include "token_mask.h"

#include <algorithm>
#include <limits>

namespace aquiline {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr std::uint32_t kAll = ~std::uint32_t{0};
constexpr int kBits = 32;

}  // namespace

bool keep_allowed(const float* row, const std::uint32_t* mask, const std::int64_t* column_ids, int num_columns,
                  float* out) {
    float largest = kMinusInfinity;
    const auto take = [&](int column, bool is_allowed) {
        out[column] = is_allowed ? row[column] : kMinusInfinity;
        largest = std::max(largest, out[column]);
    };
    if (column_ids != nullptr) {
        for (int column = 0; column < num_columns; ++column) {
            const auto id = static_cast<std::uint32_t>(column_ids[column]);
            take(column, (mask[id / kBits] >> (id % kBits) & 1u) != 0);
        }
        return largest > kMinusInfinity;
    }
    // Most words are all or nothing.
    for (int first = 0; first < num_columns; first += kBits) {
        const std::uint32_t word = mask[first / kBits];
        const int end = std::min(first + kBits, num_columns);
        if (word == 0) {
            std::fill(out + first, out + end, kMinusInfinity);
        } else if (word == kAll) {
            for (int column = first; column < end; ++column) take(column, true);
        } else {
            for (int column = first; column < end; ++column) take(column, (word >> (column - first) & 1u) != 0);
        }
    }
    return largest > kMinusInfinity;
}

}  // namespace aquiline
