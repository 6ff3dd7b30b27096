#include <immintrin.h>

#include "number_formats.h"
#include "quantize_row.h"

namespace aquiline {
namespace {

constexpr int kNumVectors = kGroupSize / 8;

// Both take lanes four apart first, then two, then one.
int largest_of(__m256i numbers) {
    __m128i best = _mm_max_epi32(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256(numbers, 1));
    best = _mm_max_epi32(best, _mm_shuffle_epi32(best, _MM_SHUFFLE(1, 0, 3, 2)));
    best = _mm_max_epi32(best, _mm_shuffle_epi32(best, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(best);
}

int sum_of(__m256i numbers) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256(numbers, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(sum);
}

// The lowest byte of each of thirty-two numbers, in their order.
__m256i low_bytes(const __m256i (&numbers)[kNumVectors]) {
    const __m256i byte = _mm256_set1_epi32(0xff);
    __m256i kept[kNumVectors];
    for (int i = 0; i < kNumVectors; ++i) kept[i] = _mm256_and_si256(numbers[i], byte);
    const __m256i halves = _mm256_packus_epi32(kept[0], kept[1]), other_halves = _mm256_packus_epi32(kept[2], kept[3]);
    // Packing works within 128 bits: words of four numbers come out as 0 2 4 6 1 3 5 7.
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(halves, other_halves),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

}  // namespace

void quantize_row_avx2(const float* row, int in_features, const QuantizedRows& destination) {
    const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
    for (int group = 0; group < in_features / kGroupSize; ++group) {
        const QuantizedRows place = from_group(destination, group);
        __m256 numbers[kNumVectors];
        // Compared as integers, where a NaN is the largest of all and so is not lost.
        __m256i magnitudes = _mm256_setzero_si256();
        for (int i = 0; i < kNumVectors; ++i) {
            numbers[i] = _mm256_loadu_ps(row + group * kGroupSize + 8 * i);
            const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(numbers[i]), magnitude_bits);
            magnitudes = _mm256_max_epi32(magnitudes, magnitude);
        }
        const float largest = float_of(static_cast<std::uint32_t>(largest_of(magnitudes)));
        const bool is_empty = largest < kSmallestMagnitude;
        const __m256 inverse = _mm256_set1_ps(is_empty ? 0.0f : 127.0f / largest);
        __m256i values[kNumVectors];
        for (int i = 0; i < kNumVectors; ++i) values[i] = _mm256_cvtps_epi32(_mm256_mul_ps(numbers[i], inverse));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(place.values), low_bytes(values));
        const __m256i sums = _mm256_add_epi32(_mm256_add_epi32(values[0], values[1]), _mm256_add_epi32(values[2], values[3]));
        const int sum = sum_of(sums);
        const float scale = is_empty ? 0.0f : largest / 127.0f;
        *place.scales = scale;
        *place.scaled_sums = scale * static_cast<float>(sum);
        *place.offsets = static_cast<int>(-128u * static_cast<unsigned>(sum));
    }
}

}  // namespace aquiline
