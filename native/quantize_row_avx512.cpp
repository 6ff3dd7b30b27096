#include <immintrin.h>

#include "number_formats.h"
#include "quantize_row.h"

namespace aquiline {

void quantize_row_avx512(const float* row, int in_features, const QuantizedRows& destination) {
    const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
    for (int group = 0; group < in_features / kGroupSize; ++group) {
        const QuantizedRows place = from_group(destination, group);
        const __m512 first = _mm512_loadu_ps(row + group * kGroupSize);
        const __m512 second = _mm512_loadu_ps(row + group * kGroupSize + 16);
        // Compared as integers, where a NaN is the largest of all and so is not lost.
        const __m512i magnitudes = _mm512_max_epi32(_mm512_and_epi32(_mm512_castps_si512(first), magnitude_bits),
                                                    _mm512_and_epi32(_mm512_castps_si512(second), magnitude_bits));
        const float largest = float_of(static_cast<std::uint32_t>(_mm512_reduce_max_epi32(magnitudes)));
        const bool is_empty = largest < kSmallestMagnitude;
        const __m512 inverse = _mm512_set1_ps(is_empty ? 0.0f : 127.0f / largest);
        const __m512i first_values = _mm512_cvtps_epi32(_mm512_mul_ps(first, inverse));
        const __m512i second_values = _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse));
        __m128i* const values = reinterpret_cast<__m128i*>(place.values);
        _mm_storeu_si128(values, _mm512_cvtepi32_epi8(first_values));
        _mm_storeu_si128(values + 1, _mm512_cvtepi32_epi8(second_values));
        const int sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first_values, second_values));
        const float scale = is_empty ? 0.0f : largest / 127.0f;
        *place.scales = scale;
        *place.scaled_sums = scale * static_cast<float>(sum);
        *place.offsets = static_cast<int>(-128u * static_cast<unsigned>(sum));
    }
}

}  // namespace aquiline
