#include <cstring>

#include "speed_loops.h"

namespace aquiline {
namespace {

std::int32_t load_word(const void* address) {
    std::int32_t word;
    std::memcpy(&word, address, sizeof word);
    return word;
}

double bfloat16_products(const UnitOperands& operands, int num_rounds) {
    __m512bh inputs[kSumRows];
    __m512 sums[kSumRows];
    for (int row = 0; row < kSumRows; ++row) {
        inputs[row] = reinterpret_cast<__m512bh>(_mm512_set1_epi32(load_word(operands.bfloat16_inputs + 2 * row)));
        sums[row] = _mm512_setzero_ps();
    }
    for (int round = 0; round < num_rounds; ++round) {
        for (int index = 0; index < UnitOperands::kDepth; ++index) {
            const __m512i columns = _mm512_loadu_si512(operands.bfloat16_columns + index * 2 * kLanes);
#pragma GCC unroll 16
            for (int row = 0; row < kSumRows; ++row) {
                sums[row] = _mm512_dpbf16_ps(sums[row], reinterpret_cast<__m512bh>(columns), inputs[row]);
            }
        }
    }
    double total = 0.0;
    for (int row = 0; row < kSumRows; ++row) total += static_cast<double>(_mm512_reduce_add_ps(sums[row]));
    return total;
}

double int8_products(const UnitOperands& operands, int num_rounds) {
    __m512i inputs[kSumRows], sums[kSumRows];
    for (int row = 0; row < kSumRows; ++row) {
        inputs[row] = _mm512_set1_epi32(load_word(operands.int8_inputs + 4 * row));
        sums[row] = _mm512_setzero_si512();
    }
    for (int round = 0; round < num_rounds; ++round) {
        for (int index = 0; index < UnitOperands::kDepth; ++index) {
            const __m512i columns = _mm512_loadu_si512(operands.int8_columns + index * 4 * kLanes);
#pragma GCC unroll 16
            for (int row = 0; row < kSumRows; ++row) sums[row] = _mm512_dpbusd_epi32(sums[row], columns, inputs[row]);
        }
    }
    double total = 0.0;
    for (int row = 0; row < kSumRows; ++row) total += _mm512_reduce_add_epi32(sums[row]);
    return total;
}

}  // namespace

const SpeedKernels avx512_speed_kernels = {sum_words, float32_products, bfloat16_products, int8_products};

}  // namespace aquiline
