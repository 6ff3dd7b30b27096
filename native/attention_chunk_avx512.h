// A chunk of keys and values, read from bfloat16 or int8 memory and rearranged for dot products of bfloat16 pairs.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attention.h"

namespace aquiline {
namespace {

constexpr int kPositionPairs = kContextChunk / 2;

// Of the keys and values of a chunk, by position.
struct ChunkScales {
    __m512 keys[2];
    __m512 values[2];
};

// out[c * stride] = word c of each of the sixteen rows.
void transpose(const __m512i (&rows)[16], __m512i* out, int stride) {
    __m512i words[4][4];  // [four rows][column of every four]
    for (int group = 0; group < 4; ++group) {
        const __m512i* const four = rows + 4 * group;
        const __m512i low_first = _mm512_unpacklo_epi32(four[0], four[1]);
        const __m512i high_first = _mm512_unpackhi_epi32(four[0], four[1]);
        const __m512i low_second = _mm512_unpacklo_epi32(four[2], four[3]);
        const __m512i high_second = _mm512_unpackhi_epi32(four[2], four[3]);
        words[group][0] = _mm512_unpacklo_epi64(low_first, low_second);
        words[group][1] = _mm512_unpackhi_epi64(low_first, low_second);
        words[group][2] = _mm512_unpacklo_epi64(high_first, high_second);
        words[group][3] = _mm512_unpackhi_epi64(high_first, high_second);
    }
    // Lane L of words[group][c] holds column 4 L + c of its four rows.
    for (int c = 0; c < 4; ++c) {
        const __m512i even_low = _mm512_shuffle_i32x4(words[0][c], words[1][c], 0x88);
        const __m512i even_high = _mm512_shuffle_i32x4(words[2][c], words[3][c], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(words[0][c], words[1][c], 0xdd);
        const __m512i odd_high = _mm512_shuffle_i32x4(words[2][c], words[3][c], 0xdd);
        out[c * stride] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        out[(c + 4) * stride] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        out[(c + 8) * stride] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        out[(c + 12) * stride] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
}

// Thirty-two numbers, as bfloat16.
template <KVType kType>
__m512i load_row(const void* numbers, std::int64_t at) {
    if constexpr (kType == KVType::bfloat16) {
        return _mm512_loadu_si512(static_cast<const std::uint16_t*>(numbers) + at);
    } else {
        const auto* const source = reinterpret_cast<const __m128i*>(static_cast<const std::int8_t*>(numbers) + at);
        const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(source)));
        const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(source + 1)));
        return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    }
}

// slots[i] is where position i lies, below 0 if no query sees it.
ChunkScales load_scales(const AttentionTile& tile, const std::int64_t (&slots)[kContextChunk]) {
    float keys[kContextChunk], values[kContextChunk];
    for (int i = 0; i < kContextChunk; ++i) {
        const std::int64_t head = slots[i] * tile.shape.num_kv_heads + tile.first_kv_head;
        keys[i] = slots[i] < 0 ? 0.0f : tile.memory.keys.scales[head];
        values[i] = slots[i] < 0 ? 0.0f : tile.memory.values.scales[head];
    }
    return {{_mm512_loadu_ps(keys), _mm512_loadu_ps(keys + 16)}, {_mm512_loadu_ps(values), _mm512_loadu_ps(values + 16)}};
}

// Rearrange the keys and values of a chunk; slots as in `load_scales`. Positions that no query sees become zeros.
//     keys     [head_dim / 2][32 positions][2]            pairs of neighbouring numbers
//     values   [16 pairs of positions][head_dim][2]       the same number of two neighbouring positions
template <KVType kType>
ChunkScales load_chunk(const AttentionTile& tile, const std::int64_t (&slots)[kContextChunk], __m512i* key_pairs,
                       __m512i* value_pairs) {
    const int width = tile.shape.head_dim;
    const void* const keys = tile.memory.keys.numbers;
    const void* const values = tile.memory.values.numbers;
    const auto row_at = [&](const void* numbers, int position, int start) {
        if (slots[position] < 0) return _mm512_setzero_si512();
        const std::int64_t head = slots[position] * tile.shape.num_kv_heads + tile.first_kv_head;
        return load_row<kType>(numbers, head * width + start);
    };
    for (int start = 0; start < width; start += 32) {
        for (int half = 0; half < 2; ++half) {
            __m512i rows[16];
            for (int i = 0; i < 16; ++i) rows[i] = row_at(keys, 16 * half + i, start);
            transpose(rows, key_pairs + start + half, 2);
        }
    }
    const __m512i low_words = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                                               6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high_words = _mm512_add_epi16(low_words, _mm512_set1_epi16(16));
    for (int pair = 0; pair < kPositionPairs; ++pair) {
        for (int start = 0; start < width; start += 32) {
            const __m512i first = row_at(values, 2 * pair, start), second = row_at(values, 2 * pair + 1, start);
            __m512i* const out = value_pairs + pair * (width / 16) + start / 16;
            out[0] = _mm512_permutex2var_epi16(first, low_words, second);
            out[1] = _mm512_permutex2var_epi16(first, high_words, second);
        }
    }
    return kType == KVType::int8 ? load_scales(tile, slots) : ChunkScales{};
}

}  // namespace
}  // namespace aquiline
