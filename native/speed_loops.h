// The loops that are written alike for every instruction set; see lanes.h for why they have internal linkage.
#pragma once

#include "lanes.h"
#include "speed_kernels.h"

namespace aquiline {
namespace {

// As many sums as fit into the registers beside their operands.
constexpr int kSumRows = kPartLanes == 16 ? 12 : kPartLanes == 8 ? 5 : 2;

std::uint32_t sum_words(const std::uint32_t* words, std::int64_t size) {
    constexpr int kVectors = 4;
    // As far ahead as the panel kernels fetch, for the processor's own prefetcher stops at every page.
    constexpr int kPrefetchBytes = 8192;
    WordLanes sums[kVectors] = {};
    for (std::int64_t at = 0; at < size; at += kVectors * kLanes) {
#pragma GCC unroll 4
        for (int vector = 0; vector < kVectors; ++vector) {
            const std::uint32_t* const source = words + at + vector * kLanes;
            __builtin_prefetch(reinterpret_cast<const char*>(source) + kPrefetchBytes);
            sums[vector] = sums[vector] + with_bits_of<WordLanes>(load(reinterpret_cast<const float*>(source)));
        }
    }
    const WordLanes all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    std::uint32_t total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += all[lane];
    return total;
}

inline double sum_of_lanes(const Lanes& sums) {
    double total = 0.0;
    for (int lane = 0; lane < kLanes; ++lane) total += static_cast<double>(sums[lane]);
    return total;
}

// One vector of columns after another, each multiplied with a number of every row.
template <class LoadColumns, class LoadInput>
inline double multiply_rows(int num_rounds, const LoadColumns& load_columns, const LoadInput& load_input) {
    Lanes inputs[kSumRows], sums[kSumRows] = {};
    for (int row = 0; row < kSumRows; ++row) inputs[row] = load_input(row);
    for (int round = 0; round < num_rounds; ++round) {
        for (int index = 0; index < UnitOperands::kDepth; ++index) {
            const Lanes columns = load_columns(index);
#pragma GCC unroll 16
            for (int row = 0; row < kSumRows; ++row) sums[row] = multiply_add(columns, inputs[row], sums[row]);
        }
    }
    double total = 0.0;
    for (int row = 0; row < kSumRows; ++row) total += sum_of_lanes(sums[row]);
    return total;
}

double float32_products(const UnitOperands& operands, int num_rounds) {
    return multiply_rows(
        num_rounds, [&](int index) { return load(operands.float32_columns + index * kLanes); },
        [&](int row) { return broadcast(operands.float32_inputs[row]); });
}

}  // namespace
}  // namespace aquiline
