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

// out[c * stride] = word c of each of sixteen rows; load(i) is row i.
template <class Load>
inline __attribute__((always_inline)) void transpose(const Load& load, __m512i* out, int stride) {
    __m512i words[4][4];  // [four rows][column of every four]
#pragma GCC unroll 4
    for (int group = 0; group < 4; ++group) {
        const __m512i first = load(4 * group), second = load(4 * group + 1);
        const __m512i third = load(4 * group + 2), fourth = load(4 * group + 3);
        const __m512i low_first = _mm512_unpacklo_epi32(first, second);
        const __m512i high_first = _mm512_unpackhi_epi32(first, second);
        const __m512i low_second = _mm512_unpacklo_epi32(third, fourth);
        const __m512i high_second = _mm512_unpackhi_epi32(third, fourth);
        words[group][0] = _mm512_unpacklo_epi64(low_first, low_second);
        words[group][1] = _mm512_unpackhi_epi64(low_first, low_second);
        words[group][2] = _mm512_unpacklo_epi64(high_first, high_second);
        words[group][3] = _mm512_unpackhi_epi64(high_first, high_second);
    }
    // Lane L of words[group][c] holds column 4 L + c of its four rows.
#pragma GCC unroll 4
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

constexpr std::int64_t bytes_of_number(KVType type) { return type == KVType::int8 ? 1 : 2; }

// Thirty-two numbers from number `start` of a head on, as bfloat16.
template <KVType kType>
inline __m512i load_row(const char* head, std::int64_t start) {
    const char* const first = head + start * bytes_of_number(kType);
    if constexpr (kType == KVType::bfloat16) {
        return _mm512_loadu_si512(first);
    } else {
        const auto* const source = reinterpret_cast<const __m128i*>(first);
        const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(source)));
        const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(source + 1)));
        return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    }
}

// Where the head that a tile begins with lies in a slot.
template <KVType kType>
inline const char* head_in(const AttentionTile& tile, const StoredHeads& stored, std::int64_t slot) {
    const std::int64_t head = slot * tile.shape.num_kv_heads + tile.first_kv_head;
    return static_cast<const char*>(stored.numbers) + head * tile.shape.head_dim * bytes_of_number(kType);
}

// slots[i] is where position i lies.
inline ChunkScales load_scales(const AttentionTile& tile, const std::int64_t (&slots)[kContextChunk]) {
    float keys[kContextChunk], values[kContextChunk];
    for (int i = 0; i < kContextChunk; ++i) {
        const std::int64_t head = slots[i] * tile.shape.num_kv_heads + tile.first_kv_head;
        keys[i] = tile.memory.keys.scales[head];
        values[i] = tile.memory.values.scales[head];
    }
    return {{_mm512_loadu_ps(keys), _mm512_loadu_ps(keys + 16)}, {_mm512_loadu_ps(values), _mm512_loadu_ps(values + 16)}};
}

// Rearrange the keys and values of a chunk; slots as in `load_scales`.
//     keys     [head_dim / 2][32 positions][2]            pairs of neighbouring numbers
//     values   [16 pairs of positions][head_dim][2]       the same number of two neighbouring positions
template <KVType kType>
ChunkScales load_chunk(const AttentionTile& tile, const std::int64_t (&slots)[kContextChunk], __m512i* key_pairs,
                       __m512i* value_pairs) {
    const int width = tile.shape.head_dim;
    const char* keys[kContextChunk];
    const char* values[kContextChunk];
    for (int i = 0; i < kContextChunk; ++i) {
        keys[i] = head_in<kType>(tile, tile.memory.keys, slots[i]);
        values[i] = head_in<kType>(tile, tile.memory.values, slots[i]);
    }
    for (int half = 0; half < 2; ++half) {
        for (int start = 0; start < width; start += 32) {
            transpose([&](int i) { return load_row<kType>(keys[16 * half + i], start); }, key_pairs + start + half, 2);
        }
    }
    const __m512i low_words = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                                               6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high_words = _mm512_add_epi16(low_words, _mm512_set1_epi16(16));
    for (int pair = 0; pair < kPositionPairs; ++pair) {
        for (int start = 0; start < width; start += 32) {
            const __m512i first = load_row<kType>(values[2 * pair], start);
            const __m512i second = load_row<kType>(values[2 * pair + 1], start);
            __m512i* const out = value_pairs + pair * (width / 16) + start / 16;
            out[0] = _mm512_permutex2var_epi16(first, low_words, second);
            out[1] = _mm512_permutex2var_epi16(first, high_words, second);
        }
    }
    return kType == KVType::int8 ? load_scales(tile, slots) : ChunkScales{};
}

void set_lane(__m512 (&vectors)[2], int position, float number) {
    const auto lane = static_cast<__mmask16>(1u << position % 16);
    vectors[position / 16] = _mm512_mask_mov_ps(vectors[position / 16], lane, _mm512_set1_ps(number));
}

// Put what lies in `slot`, or zeros where that is below 0, into one position of a chunk that `load_chunk` has rearranged.
// Costs about a tenth of rearranging all.
template <KVType kType>
void replace_position(const AttentionTile& tile, int position, std::int64_t slot, __m512i* key_pairs,
                      __m512i* value_pairs, ChunkScales& scales) {
    const int width = tile.shape.head_dim;
    const auto row_at = [&](const StoredHeads& stored, int start) {
        return slot < 0 ? _mm512_setzero_si512() : load_row<kType>(head_in<kType>(tile, stored, slot), start);
    };
    const auto lane = static_cast<__mmask16>(1u << position % 16);
    const auto words = static_cast<__mmask32>(position % 2 == 0 ? 0x55555555u : 0xaaaaaaaau);
    for (int start = 0; start < width; start += 32) {
        alignas(64) std::int32_t pairs[16];
        _mm512_store_si512(pairs, row_at(tile.memory.keys, start));
        for (int c = 0; c < 16; ++c) {
            __m512i& out = key_pairs[start + position / 16 + 2 * c];
            out = _mm512_mask_set1_epi32(out, lane, pairs[c]);
        }
        const __m512i values = row_at(tile.memory.values, start);
        __m512i* const out = value_pairs + position / 2 * (width / 16) + start / 16;
        for (int half = 0; half < 2; ++half) {
            const __m256i numbers = half == 0 ? _mm512_castsi512_si256(values) : _mm512_extracti64x4_epi64(values, 1);
            const __m512i low = _mm512_cvtepu16_epi32(numbers);
            out[half] = _mm512_mask_mov_epi16(out[half], words, position % 2 == 0 ? low : _mm512_slli_epi32(low, 16));
        }
    }
    if constexpr (kType == KVType::int8) {
        const std::int64_t head = slot * tile.shape.num_kv_heads + tile.first_kv_head;
        set_lane(scales.keys, position, slot < 0 ? 0.0f : tile.memory.keys.scales[head]);
        set_lane(scales.values, position, slot < 0 ? 0.0f : tile.memory.values.scales[head]);
    }
}

}  // namespace
}  // namespace aquiline
