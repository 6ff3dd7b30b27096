// The ways of quantising a row; all give the same bits.

#pragma once

#include "activations.h"

namespace aquiline {

// Groups smaller than this become zero: 127 / magnitude would overflow.
constexpr float kSmallestMagnitude = 0x1p-100f;

void quantize_row_portable(const float* row, int in_features, const QuantizedRows& destination);
void quantize_row_avx2(const float* row, int in_features, const QuantizedRows& destination);
void quantize_row_avx512(const float* row, int in_features, const QuantizedRows& destination);

}  // namespace aquiline
