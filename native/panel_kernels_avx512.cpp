#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "panel_kernels.h"
#include "panel_stream.h"

namespace aquiline {
namespace {

// Rows whose accumulators stay in registers together, beside the weights of a group. They do so only where the compiler
// unrolls the loops over rows, which it has to be told.
constexpr int kMaxRows = kTileRows;
constexpr int kNumBlocks = kGroupSize / 4;
constexpr int kVectorBytes = 64;

std::int32_t load_word(const void* address) {
    std::int32_t word;
    std::memcpy(&word, address, sizeof word);
    return word;
}

__m512 load_float16(const std::uint8_t* address) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(address)));
}

void store(const PanelProduct& product, int panel, int row, __m512 sum) {
    const int first_column = panel * kPanelWidth;
    if (product.bias != nullptr) sum = _mm512_add_ps(sum, _mm512_loadu_ps(product.bias + first_column));
    const std::int64_t at = row * product.out_stride + first_column;
    const auto columns = static_cast<__mmask16>(0xffffu >> (kPanelWidth - panel_width(product, panel)));
    if (product.output_kind == OutputKind::bfloat16) {
        const __m256bh rounded = _mm512_cvtneps_pbh(sum);
        __m256i words;
        std::memcpy(&words, &rounded, sizeof words);
        _mm256_mask_storeu_epi16(static_cast<std::uint16_t*>(product.out) + at, columns, words);
        return;
    }
    float* const out = static_cast<float*>(product.out) + at;
    if (product.output_kind == OutputKind::add_float32) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(columns, out), sum);
    _mm512_mask_storeu_ps(out, columns, sum);
}

template <int Rows>
void multiply_bfloat16(const PanelProduct& product, int panel, int first_row) {
    const std::uint8_t* weights = product.panels + panel * product.layout.panel_bytes;
    const std::uint16_t* const inputs =
        product.activations.bfloat16 + static_cast<std::int64_t>(first_row) * product.in_features;
    const std::int64_t row_stride = product.in_features;
    __m512 sums[Rows];
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) sums[row] = _mm512_setzero_ps();
    for (int pair = 0; pair < product.layout.num_groups; ++pair, weights += kVectorBytes) {
        prefetch_ahead<kVectorBytes>(product, weights);
        const __m512i raw = _mm512_loadu_si512(weights);
        const auto columns = reinterpret_cast<__m512bh>(raw);
#pragma GCC unroll 16
        for (int row = 0; row < Rows; ++row) {
            const __m512i both = _mm512_set1_epi32(load_word(inputs + row * row_stride + 2 * pair));
            sums[row] = _mm512_dpbf16_ps(sums[row], columns, reinterpret_cast<__m512bh>(both));
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) store(product, panel, first_row + row, sums[row]);
}

// One vector of unsigned weights, four inputs for each output, times those inputs of every row.
template <int Rows>
void add_products(__m512i weights, const std::int8_t* inputs, __m512i (&dots)[Rows]) {
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) {
        const __m512i four = _mm512_set1_epi32(load_word(inputs + row * kGroupSize));
        dots[row] = _mm512_dpbusd_epi32(dots[row], weights, four);
    }
}

// Adds the products of a group to `dots`. All rows take one vector of weights after the other, so that neighbouring
// instructions do not wait for each other. Weights of q4_0 are taken 16 times as large as they should be, which makes
// their zero point 128, like that of q8_0.
template <WeightFormat Format, int Rows>
void multiply_group(const std::uint8_t* weights, const std::int8_t* inputs, __m512i (&dots)[Rows]) {
    if constexpr (Format == WeightFormat::q8_0) {
#pragma GCC unroll 16
        for (int block = 0; block < kNumBlocks; ++block) {
            add_products<Rows>(_mm512_loadu_si512(weights + block * kVectorBytes), inputs + 4 * block, dots);
        }
    } else {
        constexpr bool is_high = Format == WeightFormat::q4_0;
        const __m512i nibble = _mm512_set1_epi8(is_high ? static_cast<char>(0xf0) : 0x0f);
#pragma GCC unroll 16
        for (int vector = 0; vector < kNumBlocks / 2; ++vector) {
            const __m512i both = _mm512_loadu_si512(weights + vector * kVectorBytes);
            const __m512i low = _mm512_and_si512(is_high ? _mm512_slli_epi16(both, 4) : both, nibble);
            const __m512i high = _mm512_and_si512(is_high ? both : _mm512_srli_epi16(both, 4), nibble);
            add_products<Rows>(low, inputs + 4 * vector, dots);
            add_products<Rows>(high, inputs + 4 * vector + kGroupSize / 2, dots);
        }
    }
}

template <WeightFormat Format, int Rows>
void multiply_quantized(const PanelProduct& product, int panel, int first_row) {
    constexpr int kGroupBytes = (Format == WeightFormat::q8_0 ? kNumBlocks : kNumBlocks / 2) * kVectorBytes;
    constexpr int kTables = Format == WeightFormat::q4_1 ? 2 : 1;
    constexpr int kTableBytes = 2 * kPanelWidth;
    constexpr int kStreamBytes = kGroupBytes + kTables * kTableBytes;  // a group's share of its panel
    const std::uint8_t* const weights = product.panels + panel * product.layout.panel_bytes;
    const std::uint8_t* const weight_scales = weights + product.layout.scales_at;
    const std::uint8_t* const minima = weights + product.layout.minima_at;
    const QuantizedRows rows = from_row(product.activations.quantized, first_row, product.in_features);

    __m512 sums[Rows];
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) sums[row] = _mm512_setzero_ps();
    for (std::int64_t group = 0; group < product.layout.num_groups; ++group) {
        prefetch_ahead<kStreamBytes>(product, weights + group * kStreamBytes);
        __m512i dots[Rows];
#pragma GCC unroll 16
        for (int row = 0; row < Rows; ++row) {
            dots[row] = Format == WeightFormat::q4_1 ? _mm512_setzero_si512()
                                                     : _mm512_set1_epi32(rows.offsets[group * kTileRows + row]);
        }
        multiply_group<Format, Rows>(weights + group * kGroupBytes, rows.values + group * kTileRows * kGroupSize, dots);
        const float* const scales = rows.scales + group * kTileRows;
        const __m512 weight_scale = load_float16(weight_scales + group * kTableBytes);
#pragma GCC unroll 16
        for (int row = 0; row < Rows; ++row) {
            const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[row]), weight_scale);
            sums[row] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(scales[row]), sums[row]);
        }
        if constexpr (Format == WeightFormat::q4_1) {
            const float* const scaled_sums = rows.scaled_sums + group * kTileRows;
            const __m512 minimum = load_float16(minima + group * kTableBytes);
#pragma GCC unroll 16
            for (int row = 0; row < Rows; ++row) {
                sums[row] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(scaled_sums[row]), sums[row]);
            }
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) {
        // A power of two, so nothing is rounded.
        const __m512 sum =
            Format == WeightFormat::q4_0 ? _mm512_mul_ps(sums[row], _mm512_set1_ps(0x1p-4f)) : sums[row];
        store(product, panel, first_row + row, sum);
    }
}

using Kernel = void (*)(const PanelProduct& product, int panel, int first_row);

template <WeightFormat Format, int Rows>
void multiply(const PanelProduct& product, int panel, int first_row) {
    if constexpr (Format == WeightFormat::bf16) {
        multiply_bfloat16<Rows>(product, panel, first_row);
    } else {
        multiply_quantized<Format, Rows>(product, panel, first_row);
    }
}

template <WeightFormat Format, int... Index>
constexpr std::array<Kernel, sizeof...(Index)> make_kernels(std::integer_sequence<int, Index...>) {
    return {multiply<Format, Index + 1>...};
}

// Every tile of rows reads the panel once more, by then from a cache.
template <WeightFormat Format>
void multiply_panels(const PanelProduct& product, int first_panel, int end_panel) {
    static constexpr auto kernels = make_kernels<Format>(std::make_integer_sequence<int, kMaxRows>());
    for (int panel = first_panel; panel < end_panel; ++panel) {
        for (int row = 0; row < product.num_rows; row += kMaxRows) {
            kernels[std::min(kMaxRows, product.num_rows - row) - 1](product, panel, row);
        }
    }
}

}  // namespace

void multiply_panels_avx512(const PanelProduct& product, int first_panel, int end_panel) {
    switch (product.format) {
        case WeightFormat::bf16: return multiply_panels<WeightFormat::bf16>(product, first_panel, end_panel);
        case WeightFormat::q8_0: return multiply_panels<WeightFormat::q8_0>(product, first_panel, end_panel);
        case WeightFormat::q4_0: return multiply_panels<WeightFormat::q4_0>(product, first_panel, end_panel);
        case WeightFormat::q4_1: return multiply_panels<WeightFormat::q4_1>(product, first_panel, end_panel);
    }
}

}  // namespace aquiline
