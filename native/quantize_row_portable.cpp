#include "number_formats.h"
#include "quantize_row.h"

namespace aquiline {

void quantize_row_portable(const float* row, int in_features, const QuantizedRows& destination) {
    // A number below 2^22 added to this is rounded to an integer, ties to even, that stands in the low bits of the sum.
    constexpr float kRounder = 12582912.0f;
    for (int group = 0; group < in_features / kGroupSize; ++group) {
        const QuantizedRows place = from_group(destination, group);
        const float* const numbers = row + group * kGroupSize;
        std::int8_t* const values = place.values;
        // Magnitudes are compared as integers, where a NaN is the largest of all and so is not lost.
        std::int32_t largest_bits = 0;
        for (int i = 0; i < kGroupSize; ++i) {
            const auto magnitude = static_cast<std::int32_t>(bits_of(numbers[i]) & 0x7fffffffu);
            largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
        }
        const float largest = float_of(static_cast<std::uint32_t>(largest_bits));
        const bool is_empty = largest < kSmallestMagnitude;
        const float inverse = is_empty ? 0.0f : 127.0f / largest;
        std::int32_t sum = 0;
        for (int i = 0; i < kGroupSize; ++i) {
            const std::uint32_t rounded = bits_of(numbers[i] * inverse + kRounder) - bits_of(kRounder);
            values[i] = static_cast<std::int8_t>(rounded);
            sum += values[i];
        }
        const float scale = is_empty ? 0.0f : largest / 127.0f;
        *place.scales = scale;
        *place.scaled_sums = scale * static_cast<float>(sum);
        *place.offsets = -128 * sum;
    }
}

}  // namespace aquiline
