// Making panels out of matrices, and reading single rows back.

#include <algorithm>
#include <stdexcept>

#include "number_formats.h"
#include "packed_linear.h"
#include "panel_kernels.h"

namespace aquiline {
namespace {

constexpr std::int64_t kCacheLine = 64;
constexpr int kBlock = 4 * kPanelWidth;
constexpr int kHalfGroup = kGroupSize / 2;
constexpr int kPairStride = 2 * kPanelWidth;  // from one pair of inputs to the next of the same output, in bfloat16

// 32 weights of one output, as GGUF files hold them: q + 128 in q8_0, q elsewhere; one unsigned number each.
struct Group {
    std::uint8_t values[kGroupSize];
    std::uint16_t scale = 0;
    std::uint16_t minimum = 0;
};

std::int64_t group_bytes(WeightFormat format) {
    return format == WeightFormat::q8_0 ? kGroupSize * kPanelWidth : kHalfGroup * kPanelWidth;
}

std::uint16_t load_half(const std::uint8_t* address) {
    return static_cast<std::uint16_t>(address[0] | address[1] << 8);
}

int gguf_block_bytes(WeightFormat format) {
    switch (format) {
        case WeightFormat::q8_0: return 2 + kGroupSize;
        case WeightFormat::q4_0: return 2 + kHalfGroup;
        case WeightFormat::q4_1: return 4 + kHalfGroup;
        default: throw std::invalid_argument("bf16 has no blocks");
    }
}

Group read_gguf_block(WeightFormat format, const std::uint8_t* block) {
    Group group;
    group.scale = load_half(block);
    if (format == WeightFormat::q4_1) group.minimum = load_half(block + 2);
    const std::uint8_t* const values = block + gguf_block_bytes(format) -
                                       (format == WeightFormat::q8_0 ? kGroupSize : kHalfGroup);
    if (format == WeightFormat::q8_0) {
        for (int i = 0; i < kGroupSize; ++i) group.values[i] = static_cast<std::uint8_t>(values[i] ^ 0x80u);
        return group;
    }
    for (int i = 0; i < kHalfGroup; ++i) {
        group.values[i] = values[i] & 0x0f;
        group.values[i + kHalfGroup] = values[i] >> 4;
    }
    return group;
}

void load_weights(const DenseMatrix& matrix, std::int64_t first, float* group) {
    if (!matrix.is_bfloat16) {
        std::copy_n(static_cast<const float*>(matrix.weights) + first, kGroupSize, group);
        return;
    }
    const auto* const weights = static_cast<const std::uint16_t*>(matrix.weights) + first;
    for (int i = 0; i < kGroupSize; ++i) group[i] = from_bfloat16(weights[i]);
}

// Rounded to nearest, ties to even, by the sum with a number so large that its last bit counts ones.
void round_quotients(const float* numbers, float divisor, float low, float high, int* rounded) {
    constexpr float kRounder = 12582912.0f;
    if (divisor == 0.0f) {
        std::fill_n(rounded, kGroupSize, 0);
        return;
    }
    for (int i = 0; i < kGroupSize; ++i) {
        const float quotient = std::min(std::max(numbers[i] / divisor, low), high);
        rounded[i] = static_cast<int>(bits_of(quotient + kRounder) - bits_of(kRounder));
    }
}

// Scale and minimum are rounded first, so that the numbers are chosen for the scale that will multiply them.
Group quantize_group(WeightFormat format, const float* weights) {
    const auto [lowest, highest] = std::minmax_element(weights, weights + kGroupSize);
    Group group;
    int rounded[kGroupSize];
    if (format == WeightFormat::q8_0) {
        group.scale = to_float16(std::max(*highest, -*lowest) / 127.0f);
        round_quotients(weights, from_float16(group.scale), -127.0f, 127.0f, rounded);
        for (int i = 0; i < kGroupSize; ++i) group.values[i] = static_cast<std::uint8_t>(rounded[i] + 128);
        return group;
    }
    group.scale = to_float16((*highest - *lowest) / 15.0f);
    group.minimum = to_float16(*lowest);
    const float minimum = from_float16(group.minimum);
    float above[kGroupSize];
    for (int i = 0; i < kGroupSize; ++i) above[i] = weights[i] - minimum;
    round_quotients(above, from_float16(group.scale), 0.0f, 15.0f, rounded);
    for (int i = 0; i < kGroupSize; ++i) group.values[i] = static_cast<std::uint8_t>(rounded[i]);
    return group;
}

// Where the pieces of one group of one output lie.
struct GroupPlace {
    std::uint8_t* values;
    std::uint8_t* scale;
    std::uint8_t* minimum;
};

GroupPlace group_place(const PanelLayout& layout, WeightFormat format, std::uint8_t* panels, int output, int group) {
    std::uint8_t* const panel = panels + output / kPanelWidth * layout.panel_bytes;
    const int column = output % kPanelWidth;
    const std::int64_t at = 2 * (static_cast<std::int64_t>(group) * kPanelWidth + column);
    return {panel + group * group_bytes(format) + 4 * column, panel + layout.scales_at + at,
            panel + layout.minima_at + at};
}

void store_half(std::uint8_t* address, std::uint16_t number) {
    address[0] = static_cast<std::uint8_t>(number);
    address[1] = static_cast<std::uint8_t>(number >> 8);
}

void write_group(const GroupPlace& place, WeightFormat format, const Group& group) {
    for (int i = 0; i < (format == WeightFormat::q8_0 ? kGroupSize : kHalfGroup); ++i) {
        std::uint8_t byte = group.values[i];
        if (format != WeightFormat::q8_0) byte = static_cast<std::uint8_t>(byte | group.values[i + kHalfGroup] << 4);
        place.values[i / 4 * kBlock + i % 4] = byte;
    }
    store_half(place.scale, group.scale);
    if (format == WeightFormat::q4_1) store_half(place.minimum, group.minimum);
}

void read_group(const GroupPlace& place, WeightFormat format, float* weights) {
    const float scale = from_float16(load_half(place.scale));
    if (format == WeightFormat::q8_0) {
        for (int i = 0; i < kGroupSize; ++i) {
            weights[i] = scale * static_cast<float>(place.values[i / 4 * kBlock + i % 4] - 128);
        }
        return;
    }
    const bool has_minimum = format == WeightFormat::q4_1;
    const int middle = has_minimum ? 0 : 8;
    const float minimum = has_minimum ? from_float16(load_half(place.minimum)) : 0.0f;
    for (int i = 0; i < kHalfGroup; ++i) {
        const int both = place.values[i / 4 * kBlock + i % 4];
        weights[i] = scale * static_cast<float>((both & 0x0f) - middle) + minimum;
        weights[i + kHalfGroup] = scale * static_cast<float>((both >> 4) - middle) + minimum;
    }
}

std::uint16_t* bfloat16_place(const PanelLayout& layout, std::uint8_t* panels, int output, int input) {
    auto* const panel = reinterpret_cast<std::uint16_t*>(panels + output / kPanelWidth * layout.panel_bytes);
    return panel + input / 2 * kPairStride + output % kPanelWidth * 2 + input % 2;
}

// Calls pack(output, group) for all of a matrix; no two threads write to the same panel.
template <class Pack>
void for_every_group(ThreadPool& threads, int out_features, int num_groups, const Pack& pack) {
    const int num_panels = (out_features + kPanelWidth - 1) / kPanelWidth;
    threads.run(num_panels, [&](int panel) {
        const int first = panel * kPanelWidth, end = std::min(first + kPanelWidth, out_features);
        for (int output = first; output < end; ++output) {
            for (int group = 0; group < num_groups; ++group) pack(output, group);
        }
    });
}

}  // namespace

PanelLayout panel_layout(WeightFormat format, int in_features) {
    PanelLayout layout;
    if (format == WeightFormat::bf16) {
        layout.num_groups = in_features / 2;
        layout.panel_bytes = static_cast<std::int64_t>(in_features) * kPanelWidth * 2;
        return layout;
    }
    layout.num_groups = in_features / kGroupSize;
    const std::int64_t table_bytes = static_cast<std::int64_t>(layout.num_groups) * kPanelWidth * 2;
    layout.scales_at = layout.num_groups * group_bytes(format);
    layout.minima_at = format == WeightFormat::q4_1 ? layout.scales_at + table_bytes : layout.scales_at;
    layout.panel_bytes = (layout.minima_at + table_bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
    return layout;
}

PackedLinear PackedLinear::from_matrix(ThreadPool& threads, const DenseMatrix& matrix, WeightFormat format,
                                       WeightMemory* memory) {
    if (format == WeightFormat::q4_0) throw std::invalid_argument("matrices are packed as bf16, q8_0 or q4_1");
    PackedLinear packed(format, matrix.out_features, matrix.in_features, memory);
    const PanelLayout layout = panel_layout(format, matrix.in_features);
    std::uint8_t* const panels = packed.panels_.data;
    const auto pack_group = [&](int output, int group) {
        float weights[kGroupSize];
        const int first = group * kGroupSize;
        load_weights(matrix, static_cast<std::int64_t>(output) * matrix.in_features + first, weights);
        if (format == WeightFormat::bf16) {
            std::uint16_t* const pairs = bfloat16_place(layout, panels, output, first);
            for (int i = 0; i < kGroupSize; ++i) pairs[i / 2 * kPairStride + i % 2] = to_bfloat16(weights[i]);
        } else {
            write_group(group_place(layout, format, panels, output, group), format, quantize_group(format, weights));
        }
    };
    for_every_group(threads, matrix.out_features, matrix.in_features / kGroupSize, pack_group);
    return packed;
}

PackedLinear PackedLinear::from_gguf(ThreadPool& threads, const GgufMatrix& matrix, WeightFormat format,
                                     WeightMemory* memory) {
    const int block_bytes = gguf_block_bytes(format), num_groups = matrix.in_features / kGroupSize;
    PackedLinear packed(format, matrix.out_features, matrix.in_features, memory);
    const PanelLayout layout = panel_layout(format, matrix.in_features);
    const auto pack_group = [&](int output, int group) {
        const std::int64_t block = static_cast<std::int64_t>(output) * num_groups + group;
        write_group(group_place(layout, format, packed.panels_.data, output, group), format,
                    read_gguf_block(format, matrix.blocks + block * block_bytes));
    };
    for_every_group(threads, matrix.out_features, num_groups, pack_group);
    return packed;
}

void PackedLinear::unpack_row(int output, float* weights) const {
    const PanelLayout layout = panel_layout(format_, in_features_);
    std::uint8_t* const panels = panels_.data;
    if (format_ == WeightFormat::bf16) {
        for (int i = 0; i < in_features_; ++i) {
            weights[i] = aquiline::from_bfloat16(*bfloat16_place(layout, panels, output, i));
        }
        return;
    }
    for (int group = 0; group < layout.num_groups; ++group) {
        read_group(group_place(layout, format_, panels, output, group), format_, weights + group * kGroupSize);
    }
}

}  // namespace aquiline
