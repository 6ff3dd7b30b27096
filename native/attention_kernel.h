// Online softmax over chunks of logical positions. See lanes.h for why everything here has internal linkage.
#pragma once

#include <cmath>

#include "attention.h"
#include "attention_span.h"
#include "lane_functions.h"
#include "lane_sums.h"
#include "lanes.h"

namespace aquiline {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// The running state of the queries of a tile, one query for each (row, head of the group).
struct TileState {
    float* queries;   // [num_queries, width], scaled, zeros behind head_dim
    float* totals;    // [num_queries, width], sum of exp(score - peak) * value
    float* weights;   // [num_queries, kContextChunk], exp(score - peak) of the chunk at hand
    float* peaks;     // [num_queries]
    float* sums;      // [num_queries], sum of exp(score - peak)
    float* keys;      // [kContextChunk, width], the chunk at hand
    float* values;    // [kContextChunk, width]
};

inline TileState place_state(const AttentionTile& tile, int width) {
    const std::int64_t num_queries = static_cast<std::int64_t>(tile.num_rows) * tile.shape.heads_per_group();
    TileState state{};
    state.keys = tile.scratch;
    state.values = state.keys + kContextChunk * width;
    state.queries = state.values + kContextChunk * width;
    state.totals = state.queries + num_queries * width;
    state.weights = state.totals + num_queries * width;
    state.peaks = state.weights + num_queries * kContextChunk;
    state.sums = state.peaks + num_queries;
    return state;
}

inline void start_state(const AttentionTile& tile, const TileState& state, int width) {
    const int heads = tile.shape.heads_per_group(), head_dim = tile.shape.head_dim;
    const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    for (int row = 0; row < tile.num_rows; ++row) {
        for (int head = 0; head < heads; ++head) {
            const std::int64_t query = static_cast<std::int64_t>(row) * heads + head;
            const float* source = tile.query + row * tile.query_stride + head * head_dim;
            for (int i = 0; i < width; ++i) {
                state.queries[query * width + i] = i < head_dim ? source[i] * scale : 0.0f;
                state.totals[query * width + i] = 0.0f;
            }
            state.peaks[query] = kMinusInfinity;
            state.sums[query] = 0.0f;
        }
    }
}

// out = source as float32, zeros behind head_dim; whole(i) reads sixteen numbers from i on, first(i, count) fewer.
template <class Whole, class First>
inline void fill_head(int head_dim, float* out, const Whole& whole, const First& first) {
    int i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) store(out + i, whole(i));
    if (i < head_dim) store(out + i, first(i, head_dim - i));
}

inline void widen_head(const StoredHeads& stored, KVType type, std::int64_t head, int head_dim, float* out) {
    const std::int64_t first_number = head * head_dim;
    if (type == KVType::bfloat16) {
        const std::uint16_t* source = static_cast<const std::uint16_t*>(stored.numbers) + first_number;
        fill_head(
            head_dim, out, [&](int i) { return load_bfloat16(source + i); },
            [&](int i, int count) { return load_first_bfloat16(source + i, count); });
    } else if (type == KVType::float32) {
        const float* source = static_cast<const float*>(stored.numbers) + first_number;
        fill_head(
            head_dim, out, [&](int i) { return load(source + i); },
            [&](int i, int count) { return load_first(source + i, count); });
    } else {
        const std::int8_t* source = static_cast<const std::int8_t*>(stored.numbers) + first_number;
        const float scale = stored.scales[head];
        fill_head(
            head_dim, out, [&](int i) { return load_int8(source + i) * scale; },
            [&](int i, int count) { return load_first_int8(source + i, count) * scale; });
    }
}

inline void load_position(const AttentionTile& tile, const TileState& state, int width, int index, std::int64_t slot) {
    const std::int64_t head = slot * tile.shape.num_kv_heads + tile.first_kv_head;
    const KVMemory& memory = tile.memory;
    widen_head(memory.keys, memory.type, head, tile.shape.head_dim, state.keys + index * width);
    widen_head(memory.values, memory.type, head, tile.shape.head_dim, state.values + index * width);
}

// Load what the pages hold of a chunk, for all rows that see some of it; returns where that ends.
inline int load_pages(const AttentionTile& tile, const TileState& state, int width, int chunk_start) {
    const Span pages = seen_pages(tile, chunk_start);
    for (int i = pages.first; i < pages.end; ++i) {
        load_position(tile, state, width, i, tile.rows[0].key_slots[chunk_start + i]);
    }
    return pages.end;
}

inline bool is_in_pages(const AttentionRow& row, int chunk_start, Span span) {
    return chunk_start + span.end <= row.visible_len;
}

// Scores of sixteen positions; kWidth is the number of Lanes of a head, 0 where only the argument knows it. Four positions
// share a part of the query while it is in a register.
template <int kWidth>
inline Lanes scores_of(const float* query, const float* keys, int num_lanes) {
    constexpr int kTogether = 4;
    const int count = kWidth > 0 ? kWidth : num_lanes, width = count * kLanes;
    Lanes products[kLanes];
    for (int first = 0; first < kLanes; first += kTogether) {
        const float* const key = keys + first * width;
        Lanes sums[kTogether];
        const Lanes start = load(query);
        for (int position = 0; position < kTogether; ++position) sums[position] = start * load(key + position * width);
        for (int i = kLanes; i < width; i += kLanes) {
            const Lanes part = load(query + i);
            for (int position = 0; position < kTogether; ++position) {
                sums[position] = multiply_add(part, load(key + position * width + i), sums[position]);
            }
        }
        for (int position = 0; position < kTogether; ++position) products[first + position] = sums[position];
    }
    return sums_of_each(products);
}

// Weights of a chunk, and the factor by which what was summed before shrinks.
template <int kWidth>
inline float weigh_chunk(const TileState& state, std::int64_t query, int width, Span span) {
    const float* row = state.queries + query * width;
    const Lanes unseen = broadcast(kMinusInfinity);
    const IntLanes low = lane_numbers(), high = low + kLanes;
    Lanes first = scores_of<kWidth>(row, state.keys, width / kLanes);
    first = select(is_at_least(low, span.first) & is_below(low, span.end), first, unseen);
    Lanes second = unseen;
    if (span.end > kLanes) {
        second = scores_of<kWidth>(row, state.keys + kLanes * width, width / kLanes);
        second = select(is_at_least(high, span.first) & is_below(high, span.end), second, unseen);
    }
    const float chunk_peak = largest_lane(larger(first, second));
    const float peak = chunk_peak > state.peaks[query] ? chunk_peak : state.peaks[query];
    const float shrink = exponential(broadcast(state.peaks[query] - peak))[0];
    first = exponential(first - peak);
    second = exponential(second - peak);
    store(state.weights + query * kContextChunk, first);
    store(state.weights + query * kContextChunk + kLanes, second);
    state.sums[query] = state.sums[query] * shrink + sum_of_lanes(first + second);
    state.peaks[query] = peak;
    return shrink;
}

// Lanes of a head whose sums, for so many queries at once, stay in registers; they divide the head.
template <int kWidth, int kHeads>
constexpr int columns_together() {
    constexpr int kRegistersForSums = kParts == 1 ? 24 : 12;
    int columns = kWidth > 0 ? kWidth : 1;
    while (columns > 1 && columns * kHeads * kParts > kRegistersForSums) columns /= 2;
    return columns;
}

// Add up weight * value for kHeads queries at once, so that their sums hide each other's latency.
template <int kWidth, int kHeads>
inline void add_values(const TileState& state, std::int64_t query, int num_lanes, Span span, const float* shrink) {
    constexpr int kColumns = columns_together<kWidth, kHeads>();
    const int width = (kWidth > 0 ? kWidth : num_lanes) * kLanes;
    for (int start = 0; start < width; start += kColumns * kLanes) {
        Lanes totals[kHeads][kColumns];
        for (int head = 0; head < kHeads; ++head) {
            const float* source = state.totals + (query + head) * width + start;
            for (int i = 0; i < kColumns; ++i) totals[head][i] = load(source + i * kLanes) * shrink[head];
        }
        for (int position = span.first; position < span.end; ++position) {
            const float* value = state.values + position * width + start;
            for (int head = 0; head < kHeads; ++head) {
                const Lanes weight = broadcast(state.weights[(query + head) * kContextChunk + position]);
                for (int i = 0; i < kColumns; ++i) {
                    totals[head][i] = multiply_add(weight, load(value + i * kLanes), totals[head][i]);
                }
            }
        }
        for (int head = 0; head < kHeads; ++head) {
            float* target = state.totals + (query + head) * width + start;
            for (int i = 0; i < kColumns; ++i) store(target + i * kLanes, totals[head][i]);
        }
    }
}

// Take the chunk at hand into the state of one row.
template <int kWidth>
inline void attend_chunk(const TileState& state, int row, int heads, int width, Span span) {
    // Wide heads leave registers for fewer of them.
    constexpr int kMaxHeads = kWidth > 4 ? 2 : 4;
    const int num_lanes = width / kLanes;
    for (int head = 0; head < heads;) {
        const std::int64_t query = static_cast<std::int64_t>(row) * heads + head;
        const int count = heads - head < kMaxHeads ? heads - head : kMaxHeads;
        float shrink[kMaxHeads];
        for (int i = 0; i < count; ++i) shrink[i] = weigh_chunk<kWidth>(state, query + i, width, span);
        if (kMaxHeads == 4 && count == 4) {
            add_values<kWidth, 4>(state, query, num_lanes, span, shrink);
        } else if (kMaxHeads == 4 && count == 3) {
            add_values<kWidth, 3>(state, query, num_lanes, span, shrink);
        } else if (count == 2) {
            add_values<kWidth, 2>(state, query, num_lanes, span, shrink);
        } else {
            add_values<kWidth, 1>(state, query, num_lanes, span, shrink);
        }
        head += count;
    }
}

inline void write_partials(const AttentionTile& tile, const TileState& state, int width) {
    const int heads = tile.shape.heads_per_group();
    const PartialLayout layout(tile.shape);
    for (int row = 0; row < tile.num_rows; ++row) {
        for (int head = 0; head < heads; ++head) {
            const std::int64_t query = static_cast<std::int64_t>(row) * heads + head;
            float* const partial = tile.partials + row * tile.partials_stride + head * layout.size;
            std::memcpy(partial, state.totals + query * width, sizeof(float) * static_cast<std::size_t>(width));
            partial[layout.peak_at()] = state.peaks[query];
            partial[layout.sum_at()] = state.sums[query];
        }
    }
}

template <int kWidth>
inline void attend_tile(const AttentionTile& tile, int width) {
    const TileState state = place_state(tile, width);
    const int heads = tile.shape.heads_per_group();
    start_state(tile, state, width);
    const int end = tile.end_position();
    for (int chunk_start = tile.segment_start; chunk_start < end; chunk_start += kContextChunk) {
        // Positions before this one hold what the pages do; those behind it, what the path of the last row does.
        int num_loaded = load_pages(tile, state, width, chunk_start);
        for (int row = 0; row < tile.num_rows; ++row) {
            const Span span = seen_span(tile, tile.rows[row], chunk_start);
            if (span.first >= span.end || !is_in_pages(tile.rows[row], chunk_start, span)) continue;
            attend_chunk<kWidth>(state, row, heads, width, span);
        }
        for (int row = 0; row < tile.num_rows; ++row) {
            const AttentionRow& keys = tile.rows[row];
            const Span span = seen_span(tile, keys, chunk_start);
            if (span.first >= span.end || is_in_pages(keys, chunk_start, span)) continue;
            const int num_pages = keys.visible_len > chunk_start ? keys.visible_len - chunk_start : 0;
            const int first = num_pages < num_loaded ? num_pages : num_loaded;
            for (int i = first > span.first ? first : span.first; i < span.end; ++i) {
                const int position = chunk_start + i;
                const bool is_page = position < keys.visible_len;
                load_position(tile, state, width, i,
                              is_page ? keys.key_slots[position] : keys.path_slots[position - keys.visible_len]);
            }
            num_loaded = num_pages;
            attend_chunk<kWidth>(state, row, heads, width, span);
        }
    }
    write_partials(tile, state, width);
}

// Take what a query summed over a later segment into what it summed before.
void merge_partial(const float* later, const PartialLayout& layout, float* sums) {
    const float later_peak = later[layout.peak_at()], before = sums[layout.peak_at()];
    if (later_peak == kMinusInfinity) return;
    const float peak = later_peak > before ? later_peak : before;
    Lanes factors = broadcast(before - peak);
    factors.parts[0][1] = later_peak - peak;
    factors = exponential(factors);
    const float kept = factors[0], added = factors[1];
    for (int i = 0; i < layout.width; i += kLanes) {
        store(sums + i, multiply_add(load(later + i), broadcast(added), load(sums + i) * kept));
    }
    sums[layout.peak_at()] = peak;
    sums[layout.sum_at()] = sums[layout.sum_at()] * kept + later[layout.sum_at()] * added;
}

void attend(const AttentionTile& tile) {
    const int num_lanes = (tile.shape.head_dim + kLanes - 1) / kLanes;
    for (int index = 0; index < tile.num_kv_heads; ++index) {
        const AttentionTile part = tile_of_head(tile, index);
        if (num_lanes == 4) {
            attend_tile<4>(part, 4 * kLanes);
        } else if (num_lanes == 8) {
            attend_tile<8>(part, 8 * kLanes);
        } else {
            attend_tile<0>(part, num_lanes * kLanes);
        }
    }
}

}  // namespace
}  // namespace aquiline
