#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "number_formats.h"
#include "panel_kernels.h"

namespace aquiline {
namespace {

// A vector holds eight outputs, half a panel.
constexpr int kHalves = 2;
constexpr int kHalfWidth = kPanelWidth / kHalves;
constexpr int kMaxRows = 4;
constexpr int kNumBlocks = kGroupSize / 4;
constexpr int kVectorBytes = 32;

__m256i load_vector(const std::uint8_t* address) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(address));
}

__m256 load_float16(const std::uint8_t* address) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(address)));
}

__m256i broadcast_word(const void* address) {
    std::int32_t word;
    std::memcpy(&word, address, sizeof word);
    return _mm256_set1_epi32(word);
}

void store(const PanelProduct& product, int panel, int half, int row, __m256 sum) {
    const int first_column = panel * kPanelWidth + half * kHalfWidth;
    if (product.bias != nullptr) sum = _mm256_add_ps(sum, _mm256_loadu_ps(product.bias + first_column));
    float numbers[kHalfWidth];
    _mm256_storeu_ps(numbers, sum);
    const std::int64_t at = row * product.out_stride + first_column;
    const int width = std::min(kHalfWidth, product.out_features - first_column);
    for (int column = 0; column < width; ++column) {
        switch (product.output_kind) {
            case OutputKind::float32: static_cast<float*>(product.out)[at + column] = numbers[column]; break;
            case OutputKind::add_float32: static_cast<float*>(product.out)[at + column] += numbers[column]; break;
            case OutputKind::bfloat16:
                static_cast<std::uint16_t*>(product.out)[at + column] = to_bfloat16(numbers[column]);
                break;
        }
    }
}

template <int Rows>
void multiply_bfloat16(const PanelProduct& product, int panel, int first_row) {
    const std::uint8_t* weights = product.panels + panel * product.layout.panel_bytes;
    const std::uint16_t* const inputs =
        product.activations.bfloat16 + static_cast<std::int64_t>(first_row) * product.in_features;
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    __m256 sums[Rows][kHalves];
    for (auto& row_sums : sums) row_sums[0] = row_sums[1] = _mm256_setzero_ps();
    for (int pair = 0; pair < product.layout.num_groups; ++pair) {
        for (int half = 0; half < kHalves; ++half, weights += kVectorBytes) {
            const __m256i both = load_vector(weights);
            const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
            const __m256 second = _mm256_castsi256_ps(_mm256_and_si256(both, upper));
            for (int row = 0; row < Rows; ++row) {
                const std::uint16_t* const input =
                    inputs + static_cast<std::int64_t>(row) * product.in_features + 2 * pair;
                __m256& sum = sums[row][half];
                sum = _mm256_fmadd_ps(first, _mm256_set1_ps(from_bfloat16(input[0])), sum);
                sum = _mm256_fmadd_ps(second, _mm256_set1_ps(from_bfloat16(input[1])), sum);
            }
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int half = 0; half < kHalves; ++half) store(product, panel, half, first_row + row, sums[row][half]);
    }
}

// Sums of four neighbouring products, in each 32-bit number. The signs move to the inputs, because one operand has to be
// unsigned; two products of magnitudes up to 128 and 127 still fit in the 16 bits between.
__m256i multiply_signed(__m256i weights, __m256i inputs) {
    const __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(inputs, weights));
    return _mm256_madd_epi16(products, _mm256_set1_epi16(1));
}

__m256i multiply_nibbles(__m256i weights, __m256i inputs) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(weights, inputs), _mm256_set1_epi16(1));
}

// Sum of weight times input over a group, for half a panel; the offset is -128 times the sum of the inputs.
template <WeightFormat Format>
__m256i multiply_group(const std::uint8_t* weights, const std::int8_t* input, const std::int32_t* offset) {
    constexpr int kPanelVector = kHalves * kVectorBytes;
    if constexpr (Format == WeightFormat::q8_0) {
        const __m256i zero_point = _mm256_set1_epi8(static_cast<char>(0x80));
        __m256i dot = _mm256_setzero_si256();
        for (int block = 0; block < kNumBlocks; ++block) {
            const __m256i numbers = _mm256_xor_si256(load_vector(weights + block * kPanelVector), zero_point);
            dot = _mm256_add_epi32(dot, multiply_signed(numbers, broadcast_word(input + 4 * block)));
        }
        return dot;
    } else {
        const __m256i nibble = _mm256_set1_epi8(0x0f);
        __m256i dot = Format == WeightFormat::q4_0 ? _mm256_srai_epi32(broadcast_word(offset), 4)
                                                   : _mm256_setzero_si256();
        for (int vector = 0; vector < kNumBlocks / 2; ++vector) {
            const __m256i both = load_vector(weights + vector * kPanelVector);
            const __m256i low = _mm256_and_si256(both, nibble);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
            const std::int8_t* const low_input = input + 4 * vector;
            dot = _mm256_add_epi32(dot, multiply_nibbles(low, broadcast_word(low_input)));
            dot = _mm256_add_epi32(dot, multiply_nibbles(high, broadcast_word(low_input + kGroupSize / 2)));
        }
        return dot;
    }
}

template <WeightFormat Format, int Rows>
void multiply_quantized(const PanelProduct& product, int panel, int first_row) {
    constexpr int kGroupBytes = (Format == WeightFormat::q8_0 ? kGroupSize : kGroupSize / 2) * kPanelWidth;
    const std::uint8_t* const weights = product.panels + panel * product.layout.panel_bytes;
    const std::int64_t num_groups = product.layout.num_groups;
    const QuantizedRows rows = from_row(product.activations.quantized, first_row, product.in_features);
    __m256 sums[Rows][kHalves];
    for (auto& row_sums : sums) row_sums[0] = row_sums[1] = _mm256_setzero_ps();
    for (std::int64_t group = 0; group < num_groups; ++group) {
        for (int half = 0; half < kHalves; ++half) {
            const std::int64_t table = (group * kPanelWidth + half * kHalfWidth) * 2;
            const __m256 weight_scale = load_float16(weights + product.layout.scales_at + table);
            for (int row = 0; row < Rows; ++row) {
                const std::int64_t at = group * kTileRows + row;
                const __m256i dot =
                    multiply_group<Format>(weights + group * kGroupBytes + half * kVectorBytes,
                                           rows.values + at * kGroupSize, rows.offsets + at);
                __m256& sum = sums[row][half];
                const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), weight_scale);
                sum = _mm256_fmadd_ps(scaled, _mm256_set1_ps(rows.scales[at]), sum);
                if constexpr (Format == WeightFormat::q4_1) {
                    const __m256 minimum = load_float16(weights + product.layout.minima_at + table);
                    sum = _mm256_fmadd_ps(minimum, _mm256_set1_ps(rows.scaled_sums[at]), sum);
                }
            }
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int half = 0; half < kHalves; ++half) store(product, panel, half, first_row + row, sums[row][half]);
    }
}

template <WeightFormat Format, int Rows>
void multiply(const PanelProduct& product, int panel, int first_row) {
    if constexpr (Format == WeightFormat::bf16) {
        multiply_bfloat16<Rows>(product, panel, first_row);
    } else {
        multiply_quantized<Format, Rows>(product, panel, first_row);
    }
}

template <WeightFormat Format>
void multiply_panels(const PanelProduct& product, int first_panel, int end_panel) {
    for (int panel = first_panel; panel < end_panel; ++panel) {
        for (int row = 0; row < product.num_rows; row += kMaxRows) {
            switch (std::min(kMaxRows, product.num_rows - row)) {
                case 1: multiply<Format, 1>(product, panel, row); break;
                case 2: multiply<Format, 2>(product, panel, row); break;
                case 3: multiply<Format, 3>(product, panel, row); break;
                default: multiply<Format, kMaxRows>(product, panel, row); break;
            }
        }
    }
}

}  // namespace

void multiply_panels_avx2(const PanelProduct& product, int first_panel, int end_panel) {
    switch (product.format) {
        case WeightFormat::bf16: return multiply_panels<WeightFormat::bf16>(product, first_panel, end_panel);
        case WeightFormat::q8_0: return multiply_panels<WeightFormat::q8_0>(product, first_panel, end_panel);
        case WeightFormat::q4_0: return multiply_panels<WeightFormat::q4_0>(product, first_panel, end_panel);
        case WeightFormat::q4_1: return multiply_panels<WeightFormat::q4_1>(product, first_panel, end_panel);
    }
}

}  // namespace aquiline
