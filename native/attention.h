// Attention over pages and tree paths; aquiline/kernels/attention_inputs.py defines what a row sees.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_table.h"
#include "kv_memory.h"
#include "thread_pool.h"

namespace aquiline {

// A row walks its keys by logical position in chunks of this many, in order. Each segment of several chunks is summed up
// apart, and the sums are merged in order. So the bits of a row do not depend on its neighbours, on the threads that share
// out the segments, or on whether a key lies in a page or in the tree.
constexpr int kContextChunk = 32;
constexpr int kContextSegment = 128;
constexpr int kMaxTileRows = 8;

struct HeadShape {
    int num_heads = 0;
    int num_kv_heads = 0;
    int head_dim = 0;
    int heads_per_group() const { return num_heads / num_kv_heads; }
};

// Where one query finds its keys: positions first_position .. visible_len - 1 in the pages, then its path.
struct AttentionRow {
    const std::int64_t* key_slots = nullptr;
    const std::int64_t* path_slots = nullptr;
    int visible_len = 0;  // 0: sees nothing and yields zeros
    int path_len = 0;
    int num_positions() const { return visible_len == 0 ? 0 : visible_len + path_len; }
};

// What one query has summed over some positions, as floats side by side: `width` sums of weight * value (those of
// head_dim and zeros behind them), the largest score, and the sum of the weights exp(score - largest). A query that has
// seen nothing has minus infinity as its largest score and zeros elsewhere.
struct PartialLayout {
    explicit PartialLayout(const HeadShape& shape) : width((shape.head_dim + 15) / 16 * 16), size(width + 16) {}
    int peak_at() const { return width; }
    int sum_at() const { return width + 1; }

    int width;
    int size;  // from query to query; each begins on a cache line
};

// One segment of what some rows see, for the query heads of some neighbouring K/V heads.
struct AttentionTile {
    const float* query;            // first row, first of those heads
    std::int64_t query_stride;     // from row to row
    float* partials;               // the same; a PartialLayout for every query head
    std::int64_t partials_stride;  // from row to row
    const AttentionRow* rows;      // all with the same key_slots
    int num_rows;
    int first_position;
    int segment_start;             // a multiple of kContextSegment
    KVMemory memory;
    HeadShape shape;
    int first_kv_head;
    int num_kv_heads;
    float* scratch;                // attention_scratch_size(...) floats, aligned to a cache line

    // Positions of the segment that some row sees end here.
    int end_position() const;
};

std::int64_t attention_scratch_size(const HeadShape& shape, int num_rows, int num_kv_heads);

// The part of it that holds the queries of one K/V head.
std::int64_t attention_queries_size(const HeadShape& shape, int num_rows);

// A tile of one K/V head of `tile`; `index` counts from 0.
AttentionTile tile_of_head(const AttentionTile& tile, int index);

// Queries and results of some rows; all heads of a row lie side by side.
struct AttentionRows {
    const float* query;
    std::int64_t query_stride;  // from row to row
    float* out;
    std::int64_t out_stride;
    int first_position;
};

// out[row, head] = softmax(query . key / sqrt(head_dim)) . value, for all heads of all rows.
void attention(ThreadPool& threads, const KernelTable& kernels, const AttentionRows& queries,
               const std::vector<AttentionRow>& rows, const KVMemory& memory, const HeadShape& shape);

}  // namespace aquiline
