#include "activations.h"

#include <algorithm>
#include <stdexcept>

#include "number_formats.h"
#include "quantize_row.h"

namespace aquiline {

ActivationBuffer::ActivationBuffer(ActivationKind kind, int max_rows, int in_features)
    : kind_(kind), max_rows_(max_rows), in_features_(in_features) {
    if (max_rows < 0 || in_features < 1 || in_features % kGroupSize != 0) {
        throw std::invalid_argument("activations need a positive multiple of 32 numbers in each row");
    }
    if (kind == ActivationKind::bfloat16) {
        bfloat16_ = AlignedMemory<std::uint16_t>(static_cast<std::size_t>(max_rows) * in_features);
        return;
    }
    const std::size_t num_tiles = (static_cast<std::size_t>(max_rows) + kTileRows - 1) / kTileRows;
    const std::size_t size = num_tiles * kTileRows * in_features;
    values_ = AlignedMemory<std::int8_t>(size);
    scales_ = AlignedMemory<float>(size / kGroupSize);
    scaled_sums_ = AlignedMemory<float>(size / kGroupSize);
    offsets_ = AlignedMemory<std::int32_t>(size / kGroupSize);
}

Activations ActivationBuffer::view() const {
    return {bfloat16_.data(), {values_.data(), scales_.data(), scaled_sums_.data(), offsets_.data()}};
}

QuantizedRows ActivationBuffer::quantized_row(int row) {
    return from_row(view().quantized, row, in_features_);
}

void quantize_row_at(Level level, const float* row, int in_features, const QuantizedRows& destination) {
#if defined(AQUILINE_HAS_X86_KERNELS)
    if (level == Level::avx512) return quantize_row_avx512(row, in_features, destination);
    if (level == Level::avx2) return quantize_row_avx2(row, in_features, destination);
#endif
    (void)level;
    quantize_row_portable(row, in_features, destination);
}

void quantize_row(const float* row, int in_features, const QuantizedRows& destination) {
    static const Level level = hardware_level();
    quantize_row_at(level, row, in_features, destination);
}

void quantize_row(const std::uint16_t* bfloat16_row, int in_features, const QuantizedRows& destination) {
    float group[kGroupSize];
    for (int first = 0; first < in_features; first += kGroupSize) {
        for (int i = 0; i < kGroupSize; ++i) group[i] = from_bfloat16(bfloat16_row[first + i]);
        quantize_row(group, kGroupSize, from_group(destination, first / kGroupSize));
    }
}

void round_row(const float* row, int in_features, std::uint16_t* destination) {
    for (int i = 0; i < in_features; ++i) destination[i] = to_bfloat16(row[i]);
}

void fill_activations(ActivationBuffer& buffer, const float* rows, std::int64_t row_stride, int num_rows) {
    for (int row = 0; row < num_rows; ++row) {
        const float* const source = rows + row * row_stride;
        if (buffer.kind() == ActivationKind::bfloat16) {
            round_row(source, buffer.in_features(), buffer.bfloat16_row(row));
        } else {
            quantize_row(source, buffer.in_features(), buffer.quantized_row(row));
        }
    }
}

void fill_activations(ActivationBuffer& buffer, const std::uint16_t* bfloat16_rows, std::int64_t row_stride,
                      int num_rows) {
    for (int row = 0; row < num_rows; ++row) {
        const std::uint16_t* const source = bfloat16_rows + row * row_stride;
        if (buffer.kind() == ActivationKind::bfloat16) {
            std::copy_n(source, buffer.in_features(), buffer.bfloat16_row(row));
        } else {
            quantize_row(source, buffer.in_features(), buffer.quantized_row(row));
        }
    }
}

}  // namespace aquiline
