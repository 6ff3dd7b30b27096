#include "number_formats.h"
#include "speed_loops.h"

namespace aquiline {
namespace {

double bfloat16_products(const UnitOperands& operands, int num_rounds) {
    return multiply_rows(
        num_rounds, [&](int index) { return load_bfloat16(operands.bfloat16_columns + index * kLanes); },
        [&](int row) { return broadcast(from_bfloat16(operands.bfloat16_inputs[row])); });
}

double int8_products(const UnitOperands& operands, int num_rounds) {
    std::int32_t sums[kLanes] = {};
    for (int round = 0; round < num_rounds; ++round) {
        for (int index = 0; index < UnitOperands::kDepth; ++index) {
            const std::uint8_t* const columns = operands.int8_columns + index * 4 * kLanes;
            for (int column = 0; column < kLanes; ++column) {
                for (int lane = 0; lane < 4; ++lane) {
                    sums[column] += columns[4 * column + lane] * operands.int8_inputs[lane];
                }
            }
        }
    }
    double total = 0.0;
    for (const std::int32_t sum : sums) total += sum;
    return total;
}

}  // namespace

const SpeedKernels portable_speed_kernels = {sum_words, float32_products, bfloat16_products, int8_products};

}  // namespace aquiline
