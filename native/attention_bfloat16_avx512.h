// Attention over bfloat16 or int8 memory by the dot product instruction of AVX-512 BF16.
#pragma once

#include "attention.h"

namespace aquiline {

// Whether `attend_bfloat16_avx512` takes a tile: depends on the model and its memory alone, never on the rows.
bool can_attend_bfloat16(const AttentionTile& tile);

void attend_bfloat16_avx512(const AttentionTile& tile);

}  // namespace aquiline
