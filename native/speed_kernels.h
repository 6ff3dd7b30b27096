// Loops that do nothing but read, or multiply and add: what the processor reaches at best with one instruction set, and
// so what kernels of that set are measured against.
#pragma once

#include <cstdint>

#include "cpu_features.h"

namespace aquiline {

// Operands of the products, all of them 1 in their own type, so that a sum of products counts them. They come from
// memory, for the compiler must not know it.
struct UnitOperands {
    static constexpr int kDepth = 64;       // vectors of sixteen columns, or of sixteen times as many as a word holds
    static constexpr int kMaxRows = 12;
    float float32_columns[kDepth * 16];
    float float32_inputs[kMaxRows];
    std::uint16_t bfloat16_columns[kDepth * 32];
    std::uint16_t bfloat16_inputs[kMaxRows * 2];
    std::uint8_t int8_columns[kDepth * 64];
    std::int8_t int8_inputs[kMaxRows * 4];
};

struct SpeedKernels {
    // Sum of `size` (a multiple of 64) 32-bit words, modulo 2^32.
    std::uint32_t (*sum_words)(const std::uint32_t* words, std::int64_t size);

    // Sum of as many products as `num_rounds` rounds through the operands make, exact while it is at most 65536.
    double (*float32_products)(const UnitOperands& operands, int num_rounds);
    double (*bfloat16_products)(const UnitOperands& operands, int num_rounds);
    double (*int8_products)(const UnitOperands& operands, int num_rounds);
};

extern const SpeedKernels portable_speed_kernels;
#if defined(AQUILINE_HAS_X86_KERNELS)
extern const SpeedKernels avx2_speed_kernels;
extern const SpeedKernels avx512_speed_kernels;
#endif

const SpeedKernels& speed_kernels_for(Level level);

}  // namespace aquiline
