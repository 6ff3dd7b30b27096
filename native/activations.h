// Rows of activations in the two forms that packed linear layers read.

#pragma once

#include <cstdint>

#include "aligned_memory.h"
#include "cpu_features.h"

namespace aquiline {

constexpr int kGroupSize = 32;

// Quantised rows lie in tiles of sixteen, each group's sixteen rows side by side: a kernel then reads the rows at
// constant distances from one address, where row by row it would need more addresses than there are registers.
constexpr int kTileRows = 16;

// The form of activations that a weight format is multiplied with.
enum class ActivationKind { bfloat16, quantized };

// Rows quantised in groups of 32: x is about scales[row, group] * values[row, i].
//
// The sums serve every weight format: `scaled_sums` multiplies the minima of weights that have them, `offsets` takes
// back the 128 that is added to signed weights because the dot product instruction wants one unsigned operand.
struct QuantizedRows {
    std::int8_t* values = nullptr;       // [num_tiles, in_features / 32, 16, 32]
    float* scales = nullptr;             // [num_tiles, in_features / 32, 16]
    float* scaled_sums = nullptr;        // [num_tiles, in_features / 32, 16], scale * sum of the group's values
    std::int32_t* offsets = nullptr;     // [num_tiles, in_features / 32, 16], -128 * sum of the group's values
};

// See lanes.h for why these have internal linkage.
namespace {

// `rows` moved forward by so many groups of a row, or by so many rows of a group: row 18 of rows of 64 numbers is the
// third of the second tile, whose groups start at 16 rows * 2 groups, so its scale of group 1 is scales[32 + 16 + 2].
inline QuantizedRows moved(const QuantizedRows& rows, std::int64_t count) {
    return {rows.values + count * kGroupSize, rows.scales + count, rows.scaled_sums + count, rows.offsets + count};
}
inline QuantizedRows from_group(const QuantizedRows& rows, std::int64_t group) {
    return moved(rows, group * kTileRows);
}
inline QuantizedRows from_row(const QuantizedRows& rows, int row, int in_features) {
    const std::int64_t num_groups = in_features / kGroupSize;
    return moved(rows, row / kTileRows * num_groups * kTileRows + row % kTileRows);
}

}  // namespace

// What a linear layer reads; only the member of its own ActivationKind is used.
struct Activations {
    const std::uint16_t* bfloat16 = nullptr;  // [num_rows, in_features]
    QuantizedRows quantized;
};

// Memory for the activations of up to `max_rows` rows in one of the two forms; it is filled by whoever computes them.
class ActivationBuffer {
public:
    ActivationBuffer() = default;
    ActivationBuffer(ActivationKind kind, int max_rows, int in_features);

    ActivationKind kind() const { return kind_; }
    int max_rows() const { return max_rows_; }
    int in_features() const { return in_features_; }

    Activations view() const;

    // Where a row goes; for a fused kernel that makes one row after another.
    std::uint16_t* bfloat16_row(int row) { return bfloat16_.data() + static_cast<std::int64_t>(row) * in_features_; }
    QuantizedRows quantized_row(int row);

private:
    ActivationKind kind_ = ActivationKind::bfloat16;
    int max_rows_ = 0;
    int in_features_ = 0;
    AlignedMemory<std::uint16_t> bfloat16_;
    AlignedMemory<std::int8_t> values_;
    AlignedMemory<float> scales_;
    AlignedMemory<float> scaled_sums_;
    AlignedMemory<std::int32_t> offsets_;
};

// Quantise one row of `in_features` (a multiple of 32) numbers: scale = largest magnitude / 127, values rounded to
// nearest, ties to even. `destination` starts at the row. Every instruction set gives the same bits.
void quantize_row(const float* row, int in_features, const QuantizedRows& destination);
void quantize_row_at(Level level, const float* row, int in_features, const QuantizedRows& destination);
void quantize_row(const std::uint16_t* bfloat16_row, int in_features, const QuantizedRows& destination);

// Round one row to bfloat16, ties to even.
void round_row(const float* row, int in_features, std::uint16_t* destination);

// Fill the first `num_rows` rows of `buffer`, in whichever form it has. `row_stride` counts elements.
void fill_activations(ActivationBuffer& buffer, const float* rows, std::int64_t row_stride, int num_rows);
void fill_activations(ActivationBuffer& buffer, const std::uint16_t* bfloat16_rows, std::int64_t row_stride,
                      int num_rows);

}  // namespace aquiline
