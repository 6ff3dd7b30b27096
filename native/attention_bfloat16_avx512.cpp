// Attention over bfloat16 or int8 keys and values with the dot product instruction for bfloat16: what `attend` of
// attention_kernel.h does, for heads of 64, 128, ... numbers. Queries and weights are rounded to bfloat16 as well; the
// integers of int8 are bfloat16 numbers as they are, and their scales go into scores and weights.
//
// A chunk of positions is rearranged once for all queries of a tile, so that no query needs a sum over lanes. Positions
// that one query does not see get the weight 0, or zeros for their values where those are not finite.

#include "attention_bfloat16_avx512.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention_chunk_avx512.h"
#include "attention_span.h"
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
    // Two sums for each half, of every other pair, so that a sum need not wait for the one before.
    __m512 sums[kCount][4];
#pragma GCC unroll 4
    for (int q = 0; q < kCount; ++q) sums[q][0] = sums[q][1] = sums[q][2] = sums[q][3] = _mm512_setzero_ps();
    for (int pair = 0; pair < width / 2; pair += 2) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            const auto low = reinterpret_cast<__m512bh>(state.keys[2 * (pair + i)]);
            const auto high = reinterpret_cast<__m512bh>(state.keys[2 * (pair + i) + 1]);
#pragma GCC unroll 4
            for (int q = 0; q < kCount; ++q) {
                const __m512bh numbers = broadcast_pair(state.queries + block.queries[q] * (width / 32), pair + i);
                sums[q][2 * i] = _mm512_dpbf16_ps(sums[q][2 * i], low, numbers);
                sums[q][2 * i + 1] = _mm512_dpbf16_ps(sums[q][2 * i + 1], high, numbers);
            }
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < kCount; ++q) {
        scores[q][0] = _mm512_mul_ps(_mm512_add_ps(sums[q][0], sums[q][2]), scale);
        scores[q][1] = _mm512_mul_ps(_mm512_add_ps(sums[q][1], sums[q][3]), scale);
    }
}

// Scores that a query does not see become minus infinity. Returns the largest.
float hide_unseen(Span span, __m512 (&scores)[2]) {
    const auto seen = static_cast<std::uint32_t>((std::uint64_t{1} << span.end) - (std::uint64_t{1} << span.first));
    const __m512 unseen = _mm512_set1_ps(kMinusInfinity);
    scores[0] = _mm512_mask_mov_ps(unseen, static_cast<__mmask16>(seen), scores[0]);
    scores[1] = _mm512_mask_mov_ps(unseen, static_cast<__mmask16>(seen >> 16), scores[1]);
    return largest_lane(larger(lanes_of(scores[0]), lanes_of(scores[1])));
}

// Turn the scores of `kCount` queries into weights; `shrink` becomes the factors by which what was summed before shrinks.
template <KVType kType, int kCount>
void weigh(const TileState& state, const Block& block, const ChunkScales& scales, __m512 (&scores)[kBlockQueries][2],
           Lanes& shrink) {
    shrink = Lanes{};
#pragma GCC unroll 4
    for (int q = 0; q < kCount; ++q) {
        const float chunk_peak = hide_unseen(block.spans[q], scores[q]), before = state.peaks[block.queries[q]];
        if (!(chunk_peak > before)) continue;
        shrink.parts[0][q] = before - chunk_peak;
        state.peaks[block.queries[q]] = chunk_peak;
    }
    shrink = exponential(shrink);
    const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
#pragma GCC unroll 4
    for (int q = 0; q < kCount; ++q) {
        const std::int64_t query = block.queries[q];
        const float peak = state.peaks[query];
        const __m512 low = vector_of(exponential(lanes_of(scores[q][0]) - peak));
        const __m512 high = vector_of(exponential(lanes_of(scores[q][1]) - peak));
        const __m512bh weights = _mm512_cvtne2ps_pbh(high, low);
        __m512bh of_values = weights;
        if constexpr (kType == KVType::int8) {
            of_values = _mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scales.values[1]), _mm512_mul_ps(low, scales.values[0]));
        }
        std::memcpy(state.weights + query, &of_values, sizeof of_values);
        const __m512 kept = _mm512_mul_ps(state.sums[query], _mm512_set1_ps(shrink[q]));
        state.sums[query] = _mm512_dpbf16_ps(kept, weights, ones);
    }
}

// Add weight * value of a chunk to the totals of `kCount` queries.
template <int kCount>
void add_values(const TileState& state, const Block& block, int width, const Lanes& shrink) {
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
    Lanes shrink;
    score<kCount>(state, block, width, scores);
    if constexpr (kType == KVType::int8) {
        for (int q = 0; q < kCount; ++q) {
            for (int half = 0; half < 2; ++half) scores[q][half] = _mm512_mul_ps(scores[q][half], scales.keys[half]);
        }
    }
    weigh<kType, kCount>(state, block, scales, scores, shrink);
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

// How a row sees a chunk.
enum class Sight { none, pages, path };

Sight sight_of(const AttentionRow& row, int chunk_start, Span span) {
    if (span.first >= span.end) return Sight::none;
    return chunk_start + span.end <= row.visible_len ? Sight::pages : Sight::path;
}

// The rearranged chunk: positions before `num_pages` are those of the pages, those up to `end` of some row's path.
struct LoadedChunk {
    ChunkScales scales;
    int num_pages;
    int end;
};

// Rearrange what the pages hold of a chunk, for all rows of the tile that see some of it.
template <KVType kType>
LoadedChunk load_pages(const AttentionTile& tile, const TileState& state, int chunk_start) {
    const Span pages = seen_pages(tile, chunk_start);
    const std::int64_t width = tile.shape.head_dim;
    if (pages.first >= pages.end) {
        std::fill_n(state.keys, width, _mm512_setzero_si512());
        std::fill_n(state.values, width, _mm512_setzero_si512());
        return {{}, 0, 0};
    }
    // Positions that no row sees hold what one of their neighbours does, and get the weight 0.
    std::int64_t slots[kContextChunk];
    for (int i = 0; i < kContextChunk; ++i) {
        slots[i] = tile.rows[0].key_slots[chunk_start + std::clamp(i, pages.first, pages.end - 1)];
    }
    return {load_chunk<kType>(tile, slots, state.keys, state.values), pages.end, pages.end};
}

template <KVType kType>
bool has_finite_values(const TileState& state, const ChunkScales& scales, int width) {
    if constexpr (kType == KVType::int8) {
        constexpr int kNotFinite = 0x99;  // NaN of both kinds, and infinity of both signs
        return (_mm512_fpclass_ps_mask(scales.values[0], kNotFinite) |
                _mm512_fpclass_ps_mask(scales.values[1], kNotFinite)) == 0;
    }
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 wrong = 0;
    for (int i = 0; i < kPositionPairs * width / 16; ++i) {
        wrong |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(state.values[i], exponent), exponent);
    }
    return wrong == 0;
}

// Whether rows may go through the pages of a chunk together: 0 times what is not finite would reach those that see less
// of it than others do.
template <KVType kType>
bool is_shared(const AttentionTile& tile, const TileState& state, int chunk_start, const LoadedChunk& chunk) {
    for (int row = 0; row < tile.num_rows; ++row) {
        const Span span = seen_span(tile, tile.rows[row], chunk_start);
        if (sight_of(tile.rows[row], chunk_start, span) != Sight::pages || span.end == chunk.end) continue;
        return has_finite_values<kType>(state, chunk.scales, tile.shape.head_dim);
    }
    return true;
}

// Rows whose part of the chunk lies in pages, all of them together.
template <KVType kType>
void attend_pages(const AttentionTile& tile, const TileState& state, int chunk_start, const LoadedChunk& chunk) {
    const int heads = tile.shape.heads_per_group();
    Block block;
    for (int row = 0; row < tile.num_rows; ++row) {
        const Span span = seen_span(tile, tile.rows[row], chunk_start);
        if (sight_of(tile.rows[row], chunk_start, span) != Sight::pages) continue;
        for (int head = 0; head < heads; ++head) {
            block.queries[block.count] = static_cast<std::int64_t>(row) * heads + head;
            block.spans[block.count++] = span;
            if (block.count < kBlockQueries) continue;
            attend_block<kType>(state, block, chunk.scales, tile.shape.head_dim);
            block.count = 0;
        }
    }
    attend_block<kType>(state, block, chunk.scales, tile.shape.head_dim);
}

// Put the path of a row in the place of that of the row before; zeros where it ends sooner, so that the numbers of one
// row never meet those of another.
template <KVType kType>
void load_path(const AttentionTile& tile, const TileState& state, int chunk_start, const AttentionRow& row,
               LoadedChunk& chunk) {
    const Span span = seen_span(tile, row, chunk_start);
    const int num_pages = std::max(row.visible_len - chunk_start, 0);
    for (int i = std::max(span.first, std::min(num_pages, chunk.num_pages)); i < std::max(span.end, chunk.end); ++i) {
        const std::int64_t slot = i >= span.end    ? -1
                                  : i < num_pages ? row.key_slots[chunk_start + i]
                                                  : row.path_slots[chunk_start + i - row.visible_len];
        replace_position<kType>(tile, i, slot, state.keys, state.values, chunk.scales);
    }
    chunk.num_pages = num_pages;
    chunk.end = span.end;
}

// A row that has the chunk for itself.
template <KVType kType>
void attend_alone(const AttentionTile& tile, const TileState& state, int chunk_start, int row, LoadedChunk& chunk) {
    const int heads = tile.shape.heads_per_group();
    const Span span = seen_span(tile, tile.rows[row], chunk_start);
    load_path<kType>(tile, state, chunk_start, tile.rows[row], chunk);
    for (int head = 0; head < heads;) {
        Block block;
        for (; head < heads && block.count < kBlockQueries; ++head) {
            block.queries[block.count] = static_cast<std::int64_t>(row) * heads + head;
            block.spans[block.count++] = span;
        }
        attend_block<kType>(state, block, chunk.scales, tile.shape.head_dim);
    }
}

template <KVType kType>
void attend_chunk(const AttentionTile& tile, const TileState& state, int chunk_start) {
    LoadedChunk chunk = load_pages<kType>(tile, state, chunk_start);
    const bool shares = is_shared<kType>(tile, state, chunk_start, chunk);
    if (shares) {
        attend_pages<kType>(tile, state, chunk_start, chunk);
    } else {
        // Positions behind those of the pages hold what their last one does.
        chunk.end = kContextChunk;
    }
    for (int row = 0; row < tile.num_rows; ++row) {
        // A row whose part of the chunk reaches into the tree always is alone.
        const Span span = seen_span(tile, tile.rows[row], chunk_start);
        const Sight sight = sight_of(tile.rows[row], chunk_start, span);
        if (sight == Sight::none || (sight == Sight::pages && shares)) continue;
        attend_alone<kType>(tile, state, chunk_start, row, chunk);
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

// Read one number of every line of the pages that some row sees of a chunk, in the order in which they lie: heads of a
// slot are neighbours, but each is used at another time. Loads teach the processor's own prefetchers the way. The chunk
// behind it is fetched meanwhile; in a loop of its own the compiler would leave that out, as something without an effect.
void fetch_chunk(const AttentionTile& tile, int chunk_start) {
    const AttentionRow& row = tile.rows[tile.num_rows - 1];
    const int rest = row.visible_len - chunk_start;
    const int head_bytes = tile.shape.head_dim * (tile.memory.type == KVType::int8 ? 1 : 2);
    const int num_bytes = tile.num_kv_heads * head_bytes;
    for (const StoredHeads& stored : {tile.memory.keys, tile.memory.values}) {
        const auto heads_at = [&](int position) {
            const std::int64_t head = row.key_slots[position] * tile.shape.num_kv_heads + tile.first_kv_head;
            return static_cast<const char*>(stored.numbers) + head * head_bytes;
        };
        for (int i = std::max(tile.first_position - chunk_start, 0); i < std::min(rest, kContextChunk); ++i) {
            const char* const first = heads_at(chunk_start + i);
            for (int at = 0; at < num_bytes; at += kLineBytes) (void)*static_cast<const volatile char*>(first + at);
            if (i + kContextChunk >= rest) continue;
            const char* const next = heads_at(chunk_start + kContextChunk + i);
            for (int at = 0; at < num_bytes; at += kLineBytes) _mm_prefetch(next + at, _MM_HINT_T0);
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
        fetch_chunk(tile, chunk_start);
        for_heads([&](const AttentionTile& part, const TileState& state) {
            attend_chunk<kType>(part, state, chunk_start);
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
