// What the kernels of every instruction set are given: panels of sixteen outputs, and rows to multiply them with.
//
// Layout of a panel (c is an output of the panel, g a group of 32 inputs):
//     bf16   values   [in / 2][16 c][2]             pairs of inputs side by side, as the dot product wants them
//     q8_0   values   [g][8 blocks][16 c][4]        q + 128 as unsigned bytes, four neighbouring inputs side by side
//            scales   [g][16 c]                     float16
//     q4_0,  values   [g][4 vectors][16 c][4]       low nibbles are block v, high nibbles block v + 4 of the above
//     q4_1   scales   [g][16 c]                     float16
//            minima   [g][16 c]                     float16, only q4_1
// Each panel starts on a cache line.

#pragma once

#include <cstdint>

#include "packed_linear.h"

namespace aquiline {

// What happens to an output row: it is written in one of two types, or added to what is there.
enum class OutputKind { float32, add_float32, bfloat16 };

struct PanelLayout {
    int num_groups = 0;             // bf16: pairs of inputs
    std::int64_t scales_at = 0;     // bytes from the start of the panel
    std::int64_t minima_at = 0;
    std::int64_t panel_bytes = 0;
};

PanelLayout panel_layout(WeightFormat format, int in_features);

struct PanelProduct {
    WeightFormat format;
    PanelLayout layout;
    int in_features;
    int out_features;
    const std::uint8_t* panels;
    const float* bias;  // nullptr, or padded to whole panels
    Activations activations;
    int num_rows;
    OutputKind output_kind;
    void* out;
    std::int64_t out_stride;
};

// Columns of a panel that exist.
inline int panel_width(const PanelProduct& product, int panel) {
    const int num_left = product.out_features - panel * kPanelWidth;
    return num_left < kPanelWidth ? num_left : kPanelWidth;
}

void multiply_panels_portable(const PanelProduct& product, int first_panel, int end_panel);
void multiply_panels_avx2(const PanelProduct& product, int first_panel, int end_panel);
void multiply_panels_avx512(const PanelProduct& product, int first_panel, int end_panel);

}  // namespace aquiline
