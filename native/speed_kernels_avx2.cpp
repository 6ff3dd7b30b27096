#include <cstring>

#include "speed_loops.h"

namespace aquiline {
namespace {

constexpr int kHalves = 2;
constexpr int kHalfRows = 4;
constexpr int kVectorBytes = 32;

__m256i load_vector(const void* address) { return _mm256_loadu_si256(static_cast<const __m256i*>(address)); }

__m256i broadcast_word(const void* address) {
    std::int32_t word;
    std::memcpy(&word, address, sizeof word);
    return _mm256_set1_epi32(word);
}

double sum_of_numbers(__m256i sums) {
    std::int32_t numbers[8];
    std::memcpy(numbers, &sums, sizeof numbers);
    double total = 0.0;
    for (const std::int32_t number : numbers) total += number;
    return total;
}

// Pairs of bfloat16 are taken apart into floats, which serve all rows.
double bfloat16_products(const UnitOperands& operands, int num_rounds) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    __m256 first_inputs[kHalfRows], second_inputs[kHalfRows], sums[kHalfRows][kHalves];
    for (int row = 0; row < kHalfRows; ++row) {
        const __m256i both = broadcast_word(operands.bfloat16_inputs + 2 * row);
        first_inputs[row] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
        second_inputs[row] = _mm256_castsi256_ps(_mm256_and_si256(both, upper));
        sums[row][0] = sums[row][1] = _mm256_setzero_ps();
    }
    for (int round = 0; round < num_rounds; ++round) {
        for (int index = 0; index < UnitOperands::kDepth; ++index) {
            const auto* const columns = reinterpret_cast<const std::uint8_t*>(operands.bfloat16_columns) +
                                        index * kHalves * kVectorBytes;
#pragma GCC unroll 2
            for (int half = 0; half < kHalves; ++half) {
                const __m256i both = load_vector(columns + half * kVectorBytes);
                const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
                const __m256 second = _mm256_castsi256_ps(_mm256_and_si256(both, upper));
#pragma GCC unroll 4
                for (int row = 0; row < kHalfRows; ++row) {
                    sums[row][half] = _mm256_fmadd_ps(first, first_inputs[row], sums[row][half]);
                    sums[row][half] = _mm256_fmadd_ps(second, second_inputs[row], sums[row][half]);
                }
            }
        }
    }
    double total = 0.0;
    for (int row = 0; row < kHalfRows; ++row) {
        for (int half = 0; half < kHalves; ++half) {
            float numbers[8];
            _mm256_storeu_ps(numbers, sums[row][half]);
            for (const float number : numbers) total += static_cast<double>(number);
        }
    }
    return total;
}

double int8_products(const UnitOperands& operands, int num_rounds) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i inputs[kHalfRows], sums[kHalfRows][kHalves];
    for (int row = 0; row < kHalfRows; ++row) {
        inputs[row] = broadcast_word(operands.int8_inputs + 4 * row);
        sums[row][0] = sums[row][1] = _mm256_setzero_si256();
    }
    for (int round = 0; round < num_rounds; ++round) {
        for (int index = 0; index < UnitOperands::kDepth; ++index) {
            const std::uint8_t* const columns = operands.int8_columns + index * kHalves * kVectorBytes;
#pragma GCC unroll 2
            for (int half = 0; half < kHalves; ++half) {
                const __m256i weights = load_vector(columns + half * kVectorBytes);
#pragma GCC unroll 4
                for (int row = 0; row < kHalfRows; ++row) {
                    const __m256i pairs = _mm256_maddubs_epi16(weights, inputs[row]);
                    sums[row][half] = _mm256_add_epi32(sums[row][half], _mm256_madd_epi16(pairs, ones));
                }
            }
        }
    }
    double total = 0.0;
    for (int row = 0; row < kHalfRows; ++row) total += sum_of_numbers(sums[row][0]) + sum_of_numbers(sums[row][1]);
    return total;
}

}  // namespace

const SpeedKernels avx2_speed_kernels = {sum_words, float32_products, bfloat16_products, int8_products};

}  // namespace aquiline
