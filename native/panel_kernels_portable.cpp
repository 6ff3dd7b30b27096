#include "number_formats.h"
#include "panel_kernels.h"

namespace aquiline {
namespace {

constexpr int kBlock = 4 * kPanelWidth;  // four inputs of each output
constexpr int kNumBlocks = kGroupSize / 4;

void sum_bfloat16(const PanelProduct& product, const std::uint8_t* panel, int row, float (&sums)[kPanelWidth]) {
    const auto* pairs = reinterpret_cast<const std::uint16_t*>(panel);
    const std::uint16_t* const inputs =
        product.activations.bfloat16 + static_cast<std::int64_t>(row) * product.in_features;
    for (int pair = 0; pair < product.layout.num_groups; ++pair, pairs += 2 * kPanelWidth) {
        const float first = from_bfloat16(inputs[2 * pair]), second = from_bfloat16(inputs[2 * pair + 1]);
        for (int column = 0; column < kPanelWidth; ++column) {
            sums[column] += first * from_bfloat16(pairs[2 * column]);
            sums[column] += second * from_bfloat16(pairs[2 * column + 1]);
        }
    }
}

void add_block(const std::uint8_t* weights, const std::int8_t* inputs, std::int32_t (&dots)[kPanelWidth]) {
    for (int column = 0; column < kPanelWidth; ++column) {
        for (int lane = 0; lane < 4; ++lane) dots[column] += weights[4 * column + lane] * inputs[lane];
    }
}

// Sum of unsigned weight times input, for one group.
void multiply_group(WeightFormat format, const std::uint8_t* weights, const std::int8_t* inputs,
                    std::int32_t (&dots)[kPanelWidth]) {
    if (format == WeightFormat::q8_0) {
        for (int block = 0; block < kNumBlocks; ++block) add_block(weights + block * kBlock, inputs + 4 * block, dots);
        return;
    }
    for (int vector = 0; vector < kNumBlocks / 2; ++vector) {
        std::uint8_t low[kBlock], high[kBlock];
        for (int i = 0; i < kBlock; ++i) {
            low[i] = weights[vector * kBlock + i] & 0x0f;
            high[i] = weights[vector * kBlock + i] >> 4;
        }
        add_block(low, inputs + 4 * vector, dots);
        add_block(high, inputs + 4 * (vector + kNumBlocks / 2), dots);
    }
}

// What has to be added to the sum of unsigned weights times inputs; `offset` is -128 times the sum of the inputs.
std::int32_t correction(WeightFormat format, std::int32_t offset) {
    if (format == WeightFormat::q8_0) return offset;
    return format == WeightFormat::q4_0 ? offset / 16 : 0;
}

void sum_quantized(const PanelProduct& product, const std::uint8_t* panel, int row, float (&sums)[kPanelWidth]) {
    const int num_groups = product.layout.num_groups;
    const int group_bytes = product.format == WeightFormat::q8_0 ? kNumBlocks * kBlock : kNumBlocks / 2 * kBlock;
    const QuantizedRows inputs = from_row(product.activations.quantized, row, product.in_features);
    const auto* scales = reinterpret_cast<const std::uint16_t*>(panel + product.layout.scales_at);
    const auto* minima = reinterpret_cast<const std::uint16_t*>(panel + product.layout.minima_at);
    for (int group = 0; group < num_groups; ++group, scales += kPanelWidth, minima += kPanelWidth) {
        std::int32_t dots[kPanelWidth] = {};
        const QuantizedRows input = from_group(inputs, group);
        multiply_group(product.format, panel + group * group_bytes, input.values, dots);
        const std::int32_t added = correction(product.format, *input.offsets);
        const float scale = *input.scales, scaled_sum = *input.scaled_sums;
        for (int column = 0; column < kPanelWidth; ++column) {
            sums[column] += static_cast<float>(dots[column] + added) * from_float16(scales[column]) * scale;
            if (product.format == WeightFormat::q4_1) sums[column] += from_float16(minima[column]) * scaled_sum;
        }
    }
}

void store(const PanelProduct& product, int panel, int row, const float (&sums)[kPanelWidth]) {
    const std::int64_t first = row * product.out_stride + panel * kPanelWidth;
    const int width = panel_width(product, panel);
    for (int column = 0; column < width; ++column) {
        const float bias = product.bias == nullptr ? 0.0f : product.bias[panel * kPanelWidth + column];
        const float sum = sums[column] + bias;
        switch (product.output_kind) {
            case OutputKind::float32: static_cast<float*>(product.out)[first + column] = sum; break;
            case OutputKind::add_float32: static_cast<float*>(product.out)[first + column] += sum; break;
            case OutputKind::bfloat16:
                static_cast<std::uint16_t*>(product.out)[first + column] = to_bfloat16(sum);
                break;
        }
    }
}

}  // namespace

void multiply_panels_portable(const PanelProduct& product, int first_panel, int end_panel) {
    for (int panel = first_panel; panel < end_panel; ++panel) {
        const std::uint8_t* const weights = product.panels + panel * product.layout.panel_bytes;
        for (int row = 0; row < product.num_rows; ++row) {
            float sums[kPanelWidth] = {};
            if (product.format == WeightFormat::bf16) {
                sum_bfloat16(product, weights, row, sums);
            } else {
                sum_quantized(product, weights, row, sums);
            }
            store(product, panel, row, sums);
        }
    }
}

}  // namespace aquiline
