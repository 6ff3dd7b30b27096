// Attention over bfloat16 or int8 keys and values with the dot product instruction for bfloat16: what `attend` of
// attention_kernel.h does, for heads of 64, 128, ... numbers. Queries and weights are rounded to bfloat16 as well; the
// integers of int8 are bfloat16 numbers as they are, and their scales go into scores and weights.
//
// A chunk of positions is rearranged once for all queries of a tile, so that no query needs a sum over lanes. Positions
// that one query does not see get the weight 0.

#include "attention_bfloat16_avx512.h"

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention_chunk_avx512.h"
#include "lane_functions.h"
#include "lane_sums.h"
#include "lanes.h"

namespace aquiline {
namespace {

constexpr int kBlockQueries = 4;
constexpr int kColumnVectors = 4;                       // of one pass over the values: 64 numbers of a head
constexpr int kLineBytes = 64;
constexpr float kMinusInfinity = -__builtin_inff();

// The running state of a tile; a query is one head of one row. Vectors of sixteen numbers each.
struct TileState {
    __m512i* keys;     // [width / 2][2]
    __m512i* values;   // [kPositionPairs][width / 16]
    __m512i* queries;  // [num_queries][width / 32]
    __m512* totals;    // [num_queries][width / 16], sum of weight * value
    __m512* sums;      // [num_queries], sum of the weights, spread over the lanes
    __m512i* weights;  // [num_queries], of the chunk at hand, one for each position
    float* peaks;      // [num_queries]
};

struct Span {
    int first;
    int end;
};

// Some queries that go through a chunk together; the bits of each do not depend on the others.
struct Block {
    int count = 0;
    std::int64_t queries[kBlockQueries];
    Span spans[kBlockQueries];
};

// The state of the K/V head number `index` of a tile; all of them use one chunk.
TileState place_state(const AttentionTile& tile, int index) {
    const std::int64_t width = tile.shape.head_dim;
    const std::int64_t num_queries = static_cast<std::int64_t>(tile.num_rows) * tile.shape.heads_per_group();
    float* next = tile.scratch;
    const auto take = [&](std::int64_t num_vectors) {
        float* const start = next;
        next += num_vectors * kLanes;
        return start;
    };
    TileState state{};
    state.keys = reinterpret_cast<__m512i*>(take(width));
    state.values = reinterpret_cast<__m512i*>(take(width));
    take(index * attention_queries_size(tile.shape, tile.num_rows) / kLanes);
    state.queries = reinterpret_cast<__m512i*>(take(num_queries * width / 32));
    state.totals = reinterpret_cast<__m512*>(take(num_queries * width / 16));
    state.sums = reinterpret_cast<__m512*>(take(num_queries));
    state.weights = reinterpret_cast<__m512i*>(take(num_queries));
    state.peaks = next;
    return state;
}

void start_state(const AttentionTile& tile, const TileState& state) {
    const int heads = tile.shape.heads_per_group(), width = tile.shape.head_dim;
    for (int row = 0; row < tile.num_rows; ++row) {
        for (int head = 0; head < heads; ++head) {
            const std::int64_t query = static_cast<std::int64_t>(row) * heads + head;
            const float* const source = tile.query + row * tile.query_stride + head * width;
            for (int i = 0; i < width / 32; ++i) {
                const __m512bh rounded =
                    _mm512_cvtne2ps_pbh(_mm512_loadu_ps(source + 32 * i + 16), _mm512_loadu_ps(source + 32 * i));
                std::memcpy(state.queries + query * (width / 32) + i, &rounded, sizeof rounded);
            }
            for (int i = 0; i < width / 16; ++i) state.totals[query * (width / 16) + i] = _mm512_setzero_ps();
            state.sums[query] = _mm512_setzero_ps();
            state.peaks[query] = kMinusInfinity;
        }
    }
}

__m512bh broadcast_pair(const __m512i* numbers, int pair) {
    std::int32_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(numbers) + 4 * pair, sizeof word);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
}

Lanes lanes_of(__m512 vector) {
    Lanes lanes;
    std::memcpy(&lanes, &vector, sizeof vector);
    return lanes;
}

__m512 vector_of(const Lanes& lanes) {
    __m512 vector;
    std::memcpy(&vector, &lanes, sizeof vector);
    return vector;
}

// Scores of both halves of a chunk, for `kCount` queries. They are scaled here, so that rounding sees the queries as
// they are.
template <int kCount>
void score(const TileState& state, const Block& block, int width, __m512 (&scores)[kBlockQueries][2]) {
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(static_cast<float>(width)));
    __m512 sums[kCount][2];
#pragma GCC unroll 4
    for (int q = 0; q < kCount; ++q) sums[q][0] = sums[q][1] = _mm512_setzero_ps();
    for (int pair = 0; pair < width / 2; ++pair) {
        const auto low = reinterpret_cast<__m512bh>(state.keys[2 * pair]);
        const auto high = reinterpret_cast<__m512bh>(state.keys[2 * pair + 1]);
#pragma GCC unroll 4
        for (int q = 0; q < kCount; ++q) {
            const __m512bh numbers = broadcast_pair(state.queries + block.queries[q] * (width / 32), pair);
            sums[q][0] = _mm512_dpbf16_ps(sums[q][0], low, numbers);
            sums[q][1] = _mm512_dpbf16_ps(sums[q][1], high, numbers);
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < kCount; ++q) {
        scores[q][0] = _mm512_mul_ps(sums[q][0], scale);
        scores[q][1] = _mm512_mul_ps(sums[q][1], scale);
    }
}

// Turn scores into weights; returns the factor by which what was summed before shrinks.
template <KVType kType>
float weigh(const TileState& state, std::int64_t query, Span span, const ChunkScales& scales, __m512 low_scores,
            __m512 high_scores) {
    const auto seen = static_cast<std::uint32_t>((std::uint64_t{1} << span.end) - (std::uint64_t{1} << span.first));
    const __m512 unseen = _mm512_set1_ps(kMinusInfinity);
    const Lanes low = lanes_of(_mm512_mask_mov_ps(unseen, static_cast<__mmask16>(seen), low_scores));
    const Lanes high = lanes_of(_mm512_mask_mov_ps(unseen, static_cast<__mmask16>(seen >> 16), high_scores));
    const float chunk_peak = largest_lane(larger(low, high)), before = state.peaks[query];
    const float peak = chunk_peak > before ? chunk_peak : before;
    const __m512 low_weights = vector_of(exponential(low - peak)), high_weights = vector_of(exponential(high - peak));
    const __m512bh weights = _mm512_cvtne2ps_pbh(high_weights, low_weights);
    __m512bh of_values = weights;
    if constexpr (kType == KVType::int8) {
        of_values = _mm512_cvtne2ps_pbh(_mm512_mul_ps(high_weights, scales.values[1]),
                                        _mm512_mul_ps(low_weights, scales.values[0]));
    }
    std::memcpy(state.weights + query, &of_values, sizeof of_values);
    const float shrink = peak == before ? 1.0f : exponential(broadcast(before - peak))[0];
    const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
    state.sums[query] = _mm512_dpbf16_ps(_mm512_mul_ps(state.sums[query], _mm512_set1_ps(shrink)), weights, ones);
    state.peaks[query] = peak;
    return shrink;
}

// Add weight * value of a chunk to the totals of `kCount` queries.
template <int kCount>
void add_values(const TileState& state, const Block& block, int width, const float (&shrink)[kBlockQueries]) {
    for (int start = 0; start < width / 16; start += kColumnVectors) {
        __m512 totals[kCount][kColumnVectors];
#pragma GCC unroll 4
        for (int q = 0; q < kCount; ++q) {
            const __m512* const before = state.totals + block.queries[q] * (width / 16) + start;
#pragma GCC unroll 4
            for (int i = 0; i < kColumnVectors; ++i) {
                totals[q][i] = _mm512_mul_ps(before[i], _mm512_set1_ps(shrink[q]));
            }
        }
        for (int pair = 0; pair < kPositionPairs; ++pair) {
            const __m512i* const values = state.values + pair * (width / 16) + start;
#pragma GCC unroll 4
            for (int q = 0; q < kCount; ++q) {
                const __m512bh weights = broadcast_pair(state.weights + block.queries[q], pair);
#pragma GCC unroll 4
                for (int i = 0; i < kColumnVectors; ++i) {
                    totals[q][i] = _mm512_dpbf16_ps(totals[q][i], reinterpret_cast<__m512bh>(values[i]), weights);
                }
            }
        }
#pragma GCC unroll 4
        for (int q = 0; q < kCount; ++q) {
            __m512* const after = state.totals + block.queries[q] * (width / 16) + start;
#pragma GCC unroll 4
            for (int i = 0; i < kColumnVectors; ++i) after[i] = totals[q][i];
        }
    }
}

template <KVType kType, int kCount>
void attend_queries(const TileState& state, const Block& block, const ChunkScales& scales, int width) {
    __m512 scores[kBlockQueries][2];
    float shrink[kBlockQueries];
    score<kCount>(state, block, width, scores);
    for (int q = 0; q < kCount; ++q) {
        if constexpr (kType == KVType::int8) {
            for (int half = 0; half < 2; ++half) scores[q][half] = _mm512_mul_ps(scores[q][half], scales.keys[half]);
        }
        shrink[q] = weigh<kType>(state, block.queries[q], block.spans[q], scales, scores[q][0], scores[q][1]);
    }
    add_values<kCount>(state, block, width, shrink);
}

template <KVType kType>
void attend_block(const TileState& state, const Block& block, const ChunkScales& scales, int width) {
    switch (block.count) {
        case 1: return attend_queries<kType, 1>(state, block, scales, width);
        case 2: return attend_queries<kType, 2>(state, block, scales, width);
        case 3: return attend_queries<kType, 3>(state, block, scales, width);
        case 4: return attend_queries<kType, 4>(state, block, scales, width);
        default: return;
    }
}

Span seen_span(const AttentionTile& tile, const AttentionRow& row, int chunk_start) {
    const int first = tile.first_position > chunk_start ? tile.first_position - chunk_start : 0;
    const int rest = row.num_positions() - chunk_start;
    return {first, rest < kContextChunk ? rest : kContextChunk};
}

// How a row sees a chunk.
enum class Sight { none, pages, path };

Sight sight_of(const AttentionRow& row, int chunk_start, Span span) {
    if (span.first >= span.end) return Sight::none;
    return chunk_start + span.end <= row.visible_len ? Sight::pages : Sight::path;
}

// Rows whose part of the chunk lies in pages, all of them together.
template <KVType kType>
void attend_pages(const AttentionTile& tile, const TileState& state, int chunk_start) {
    const int heads = tile.shape.heads_per_group();
    Span shared{0, 0};
    for (int row = 0; row < tile.num_rows; ++row) {
        const Span span = seen_span(tile, tile.rows[row], chunk_start);
        if (sight_of(tile.rows[row], chunk_start, span) == Sight::pages && span.end > shared.end) shared = span;
    }
    if (shared.end == 0) return;
    std::int64_t slots[kContextChunk];
    for (int i = 0; i < kContextChunk; ++i) {
        slots[i] = i >= shared.first && i < shared.end ? tile.rows[0].key_slots[chunk_start + i] : -1;
    }
    const ChunkScales scales = load_chunk<kType>(tile, slots, state.keys, state.values);
    Block block;
    for (int row = 0; row < tile.num_rows; ++row) {
        const Span span = seen_span(tile, tile.rows[row], chunk_start);
        if (sight_of(tile.rows[row], chunk_start, span) != Sight::pages) continue;
        for (int head = 0; head < heads; ++head) {
            block.queries[block.count] = static_cast<std::int64_t>(row) * heads + head;
            block.spans[block.count++] = span;
            if (block.count < kBlockQueries) continue;
            attend_block<kType>(state, block, scales, tile.shape.head_dim);
            block.count = 0;
        }
    }
    attend_block<kType>(state, block, scales, tile.shape.head_dim);
}

// A row whose part of the chunk reaches into the tree.
template <KVType kType>
void attend_path(const AttentionTile& tile, const TileState& state, int chunk_start, int row) {
    const AttentionRow& keys = tile.rows[row];
    const int heads = tile.shape.heads_per_group();
    const Span span = seen_span(tile, keys, chunk_start);
    if (sight_of(keys, chunk_start, span) != Sight::path) return;
    std::int64_t slots[kContextChunk];
    for (int i = 0; i < kContextChunk; ++i) {
        const int position = chunk_start + i;
        const bool is_seen = i >= span.first && i < span.end;
        slots[i] = !is_seen                      ? -1
                   : position < keys.visible_len ? keys.key_slots[position]
                                                 : keys.path_slots[position - keys.visible_len];
    }
    const ChunkScales scales = load_chunk<kType>(tile, slots, state.keys, state.values);
    for (int head = 0; head < heads;) {
        Block block;
        for (; head < heads && block.count < kBlockQueries; ++head) {
            block.queries[block.count] = static_cast<std::int64_t>(row) * heads + head;
            block.spans[block.count++] = span;
        }
        attend_block<kType>(state, block, scales, tile.shape.head_dim);
    }
}

void write_partials(const AttentionTile& tile, const TileState& state) {
    const int heads = tile.shape.heads_per_group(), width = tile.shape.head_dim;
    const PartialLayout layout(tile.shape);
    for (int row = 0; row < tile.num_rows; ++row) {
        for (int head = 0; head < heads; ++head) {
            const std::int64_t query = static_cast<std::int64_t>(row) * heads + head;
            float* const partial = tile.partials + row * tile.partials_stride + head * layout.size;
            for (int i = 0; i < width / 16; ++i) {
                _mm512_storeu_ps(partial + 16 * i, state.totals[query * (width / 16) + i]);
            }
            partial[layout.peak_at()] = state.peaks[query];
            partial[layout.sum_at()] = sum_of_lanes(lanes_of(state.sums[query]));
        }
    }
}

// Read one number of every line of a chunk of pages, in the order in which they lie: heads of a slot are neighbours, but
// each is used at another time. Loads teach the processor's own prefetchers the way; prefetch instructions do not.
void touch_chunk(const AttentionTile& tile, int chunk_start) {
    const AttentionRow& row = tile.rows[tile.num_rows - 1];
    const int rest = row.visible_len - chunk_start;
    const int head_bytes = tile.shape.head_dim * (tile.memory.type == KVType::int8 ? 1 : 2);
    for (const StoredHeads& stored : {tile.memory.keys, tile.memory.values}) {
        for (int i = 0; i < (rest < kContextChunk ? rest : kContextChunk); ++i) {
            const std::int64_t head = row.key_slots[chunk_start + i] * tile.shape.num_kv_heads + tile.first_kv_head;
            const char* const first = static_cast<const char*>(stored.numbers) + head * head_bytes;
            for (int at = 0; at < tile.num_kv_heads * head_bytes; at += kLineBytes) {
                (void)*reinterpret_cast<const volatile char*>(first + at);
            }
        }
    }
}

template <KVType kType>
void attend_memory(const AttentionTile& tile) {
    const auto for_heads = [&](const auto& body) {
        for (int index = 0; index < tile.num_kv_heads; ++index) body(tile_of_head(tile, index), place_state(tile, index));
    };
    for_heads([](const AttentionTile& part, const TileState& state) { start_state(part, state); });
    const int end = tile.end_position();
    for (int chunk_start = tile.segment_start; chunk_start < end; chunk_start += kContextChunk) {
        touch_chunk(tile, chunk_start);
        for_heads([&](const AttentionTile& part, const TileState& state) {
            attend_pages<kType>(part, state, chunk_start);
            for (int row = 0; row < tile.num_rows; ++row) attend_path<kType>(part, state, chunk_start, row);
        });
    }
    for_heads([](const AttentionTile& part, const TileState& state) { write_partials(part, state); });
}

}  // namespace

bool can_attend_bfloat16(const AttentionTile& tile) {
    return tile.memory.type != KVType::float32 && tile.shape.head_dim % (kColumnVectors * kLanes) == 0;
}

void attend_bfloat16_avx512(const AttentionTile& tile) {
    if (tile.memory.type == KVType::int8) return attend_memory<KVType::int8>(tile);
    attend_memory<KVType::bfloat16>(tile);
}

}  // namespace aquiline
