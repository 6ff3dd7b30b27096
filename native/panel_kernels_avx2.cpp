#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "number_formats.h"
#include "panel_kernels.h"
#include "panel_stream.h"

namespace aquiline {
namespace {

// A vector holds eight outputs, half a panel.
constexpr int kHalves = 2;
constexpr int kHalfWidth = kPanelWidth / kHalves;

// Rows whose sums of a group stay in registers together; a tile of sixteen is four of these.
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
    const std::int64_t at = row * product.out_stride + first_column;
    if (product.output_kind != OutputKind::bfloat16 && first_column + kHalfWidth <= product.out_features) {
        float* const out = static_cast<float*>(product.out) + at;
        if (product.output_kind == OutputKind::add_float32) sum = _mm256_add_ps(_mm256_loadu_ps(out), sum);
        return _mm256_storeu_ps(out, sum);
    }
    float numbers[kHalfWidth];
    _mm256_storeu_ps(numbers, sum);
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

// The first and the second of every two numbers of sixteen bits, as float32.
__m256 first_of_pairs(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
__m256 second_of_pairs(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

template <int Rows>
void multiply_bfloat16(const PanelProduct& product, int panel, int first_row) {
    const std::uint8_t* weights = product.panels + panel * product.layout.panel_bytes;
    const std::uint16_t* const inputs =
        product.activations.bfloat16 + static_cast<std::int64_t>(first_row) * product.in_features;
    const std::int64_t row_stride = product.in_features;
    __m256 sums[Rows][kHalves];
#pragma GCC unroll 4
    for (auto& row_sums : sums) row_sums[0] = row_sums[1] = _mm256_setzero_ps();
    for (int pair = 0; pair < product.layout.num_groups; ++pair, weights += kHalves * kVectorBytes) {
        prefetch_ahead<kHalves * kVectorBytes>(product, weights);
        const __m256i left = load_vector(weights), right = load_vector(weights + kVectorBytes);
        const __m256 left_first = first_of_pairs(left), left_second = second_of_pairs(left);
        const __m256 right_first = first_of_pairs(right), right_second = second_of_pairs(right);
#pragma GCC unroll 4
        for (int row = 0; row < Rows; ++row) {
            const __m256i both = broadcast_word(inputs + row * row_stride + 2 * pair);
            const __m256 first = first_of_pairs(both), second = second_of_pairs(both);
            sums[row][0] = _mm256_fmadd_ps(left_second, second, _mm256_fmadd_ps(left_first, first, sums[row][0]));
            sums[row][1] = _mm256_fmadd_ps(right_second, second, _mm256_fmadd_ps(right_first, first, sums[row][1]));
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int half = 0; half < kHalves; ++half) store(product, panel, half, first_row + row, sums[row][half]);
    }
}

// Sums of products of some rows with the two halves of a panel. They stay in registers only where the loops over rows
// are unrolled into their caller, which compilers have to be told.
template <int Rows>
using Dots = __m256i[Rows][kHalves];

// Compilers like to put off sums of integers until they have all products, for which there are no registers: what passes
// through here is there when the program says so.
[[gnu::always_inline]] inline __m256i summed_now(__m256i sum) {
    asm("" : "+x"(sum));
    return sum;
}

// Two vectors of unsigned weights, four inputs for each of sixteen outputs, times those inputs of every row; two sums of
// two products for each output, in 16 bits. Both halves share an input while it is in a register.
template <int Rows>
[[gnu::always_inline]] inline void add_products(__m256i left, __m256i right, const std::int8_t* inputs,
                                                Dots<Rows>& dots) {
#pragma GCC unroll 4
    for (int row = 0; row < Rows; ++row) {
        const __m256i four = broadcast_word(inputs + row * kGroupSize);
        dots[row][0] = summed_now(_mm256_add_epi16(dots[row][0], _mm256_maddubs_epi16(left, four)));
        dots[row][1] = summed_now(_mm256_add_epi16(dots[row][1], _mm256_maddubs_epi16(right, four)));
    }
}

// Sums of weight times input over a group. Nibbles are so small that the sums of a whole group fit in 16 bits,
// 8 * 2 * 15 * 127, and are widened once.
template <int Rows>
[[gnu::always_inline]] inline void multiply_nibbles(const std::uint8_t* weights, const std::int8_t* inputs,
                                                    Dots<Rows>& dots) {
    const __m256i nibble = _mm256_set1_epi8(0x0f);
#pragma GCC unroll 4
    for (int vector = 0; vector < kNumBlocks / 2; ++vector) {
        const __m256i left = load_vector(weights + vector * kHalves * kVectorBytes);
        const __m256i right = load_vector(weights + vector * kHalves * kVectorBytes + kVectorBytes);
        const std::int8_t* const own = inputs + 4 * vector;
        add_products<Rows>(_mm256_and_si256(left, nibble), _mm256_and_si256(right, nibble), own, dots);
        add_products<Rows>(_mm256_and_si256(_mm256_srli_epi16(left, 4), nibble),
                           _mm256_and_si256(_mm256_srli_epi16(right, 4), nibble), own + kGroupSize / 2, dots);
    }
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (auto& row_dots : dots) {
        row_dots[0] = _mm256_madd_epi16(row_dots[0], ones);
        row_dots[1] = _mm256_madd_epi16(row_dots[1], ones);
    }
}

// Sums of four neighbouring products. The signs move to the inputs, because one operand has to be unsigned; two products
// of magnitudes up to 128 and 127 still fit in the 16 bits between.
inline __m256i multiply_signed(__m256i weights, __m256i magnitudes, __m256i inputs) {
    const __m256i products = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(inputs, weights));
    return _mm256_madd_epi16(products, _mm256_set1_epi16(1));
}

// The same for weights of 8 bits.
template <int Rows>
[[gnu::always_inline]] inline void multiply_bytes(const std::uint8_t* weights, const std::int8_t* inputs,
                                                  Dots<Rows>& dots) {
    const __m256i zero_point = _mm256_set1_epi8(static_cast<char>(0x80));
#pragma GCC unroll 8
    for (int block = 0; block < kNumBlocks; ++block, weights += kHalves * kVectorBytes) {
        const __m256i left = _mm256_xor_si256(load_vector(weights), zero_point);
        const __m256i right = _mm256_xor_si256(load_vector(weights + kVectorBytes), zero_point);
        const __m256i left_size = _mm256_abs_epi8(left), right_size = _mm256_abs_epi8(right);
#pragma GCC unroll 4
        for (int row = 0; row < Rows; ++row) {
            const __m256i four = broadcast_word(inputs + 4 * block + row * kGroupSize);
            dots[row][0] = summed_now(_mm256_add_epi32(dots[row][0], multiply_signed(left, left_size, four)));
            dots[row][1] = summed_now(_mm256_add_epi32(dots[row][1], multiply_signed(right, right_size, four)));
        }
    }
}

template <WeightFormat Format, int Rows>
void multiply_quantized(const PanelProduct& product, int panel, int first_row) {
    constexpr bool is_wide = Format == WeightFormat::q8_0;
    constexpr int kGroupBytes = (is_wide ? kGroupSize : kGroupSize / 2) * kPanelWidth;
    constexpr int kTableBytes = 2 * kPanelWidth;
    constexpr int kStreamBytes = kGroupBytes + (Format == WeightFormat::q4_1 ? 2 : 1) * kTableBytes;
    const std::uint8_t* const weights = product.panels + panel * product.layout.panel_bytes;
    const std::int64_t num_groups = product.layout.num_groups;
    const QuantizedRows rows = from_row(product.activations.quantized, first_row, product.in_features);
    __m256 sums[Rows][kHalves];
    for (auto& row_sums : sums) row_sums[0] = row_sums[1] = _mm256_setzero_ps();
    for (std::int64_t group = 0; group < num_groups; ++group) {
        prefetch_ahead<kStreamBytes>(product, weights + group * kStreamBytes);
        const std::int64_t at = group * kTileRows;
        Dots<Rows> dots;
#pragma GCC unroll 4
        for (auto& row_dots : dots) row_dots[0] = row_dots[1] = _mm256_setzero_si256();
        if constexpr (is_wide) {
            multiply_bytes<Rows>(weights + group * kGroupBytes, rows.values + at * kGroupSize, dots);
        } else {
            multiply_nibbles<Rows>(weights + group * kGroupBytes, rows.values + at * kGroupSize, dots);
        }
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
            const std::int64_t table = group * kTableBytes + half * kTableBytes / kHalves;
            const __m256 weight_scale = load_float16(weights + product.layout.scales_at + table);
#pragma GCC unroll 4
            for (int row = 0; row < Rows; ++row) {
                __m256i dot = dots[row][half];
                if constexpr (Format == WeightFormat::q4_0) {
                    // The zero point is 8, so -8 times the sum of the inputs is a sixteenth of the offset.
                    dot = _mm256_add_epi32(dot, _mm256_set1_epi32(rows.offsets[at + row] / 16));
                }
                const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), weight_scale);
                sums[row][half] = _mm256_fmadd_ps(scaled, _mm256_set1_ps(rows.scales[at + row]), sums[row][half]);
            }
            if constexpr (Format == WeightFormat::q4_1) {
                const __m256 minimum = load_float16(weights + product.layout.minima_at + table);
#pragma GCC unroll 4
                for (int row = 0; row < Rows; ++row) {
                    const __m256 scaled_sum = _mm256_set1_ps(rows.scaled_sums[at + row]);
                    sums[row][half] = _mm256_fmadd_ps(minimum, scaled_sum, sums[row][half]);
                }
            }
        }
    }
    for (int row = 0; row < Rows; ++row) {
        for (int half = 0; half < kHalves; ++half) store(product, panel, half, first_row + row, sums[row][half]);
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

void multiply_panels_avx2(const PanelProduct& product, int first_panel, int end_panel) {
    switch (product.format) {
        case WeightFormat::bf16: return multiply_panels<WeightFormat::bf16>(product, first_panel, end_panel);
        case WeightFormat::q8_0: return multiply_panels<WeightFormat::q8_0>(product, first_panel, end_panel);
        case WeightFormat::q4_0: return multiply_panels<WeightFormat::q4_0>(product, first_panel, end_panel);
        case WeightFormat::q4_1: return multiply_panels<WeightFormat::q4_1>(product, first_panel, end_panel);
    }
}

}  // namespace aquiline
