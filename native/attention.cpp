#include "attention.h"

#include <algorithm>

#include "aligned_memory.h"

namespace aquiline {

namespace {

constexpr int kTilesPerThread = 2;

struct TileRange {
    int first_row;
    int num_rows;
};

// Neighbouring rows of one request read the same pages, so a tile of them converts every key once. Small tiles leave
// work for every thread; the bits of a row do not depend on its tile.
std::vector<TileRange> share_out(const std::vector<AttentionRow>& rows, int num_kv_heads, int num_threads) {
    const int num_rows = static_cast<int>(rows.size());
    const int wanted_tiles = std::max(1, 4 * num_threads / num_kv_heads);
    const int tile_rows = std::clamp(num_rows / wanted_tiles, 1, kMaxTileRows);
    std::vector<TileRange> tiles;
    for (int row = 0; row < num_rows;) {
        int end = row + 1;
        while (end < num_rows && end - row < tile_rows && rows[end].key_slots == rows[row].key_slots) ++end;
        tiles.push_back({row, end - row});
        row = end;
    }
    return tiles;
}

float* scratch_of_this_thread(std::int64_t size) {
    thread_local AlignedMemory<float> scratch;
    if (scratch.size() < static_cast<std::size_t>(size)) scratch = AlignedMemory<float>(static_cast<std::size_t>(size));
    return scratch.data();
}

}  // namespace

std::int64_t attention_queries_size(const HeadShape& shape, int num_rows) {
    const std::int64_t width = (shape.head_dim + 15) / 16 * 16;
    const std::int64_t num_queries = static_cast<std::int64_t>(num_rows) * shape.heads_per_group();
    const std::int64_t numbers_per_query = 2 * width + kContextChunk + 2;
    return (num_queries * numbers_per_query + 15) / 16 * 16;
}

std::int64_t attention_scratch_size(const HeadShape& shape, int num_rows, int num_kv_heads) {
    const std::int64_t width = (shape.head_dim + 15) / 16 * 16;
    return num_kv_heads * attention_queries_size(shape, num_rows) + 2 * kContextChunk * width;
}

AttentionTile tile_of_head(const AttentionTile& tile, int index) {
    const std::int64_t first_column = static_cast<std::int64_t>(index) * tile.shape.heads_per_group() * tile.shape.head_dim;
    AttentionTile part = tile;
    part.query += first_column;
    part.out += first_column;
    part.first_kv_head += index;
    part.num_kv_heads = 1;
    return part;
}

void attention(ThreadPool& threads, const KernelTable& kernels, const float* query, std::int64_t query_stride,
               const std::vector<AttentionRow>& rows, int first_position, const KVMemory& memory,
               const HeadShape& shape, float* out, std::int64_t out_stride) {
    const std::vector<TileRange> tiles = share_out(rows, shape.num_kv_heads, threads.num_threads());
    // The heads of a slot lie side by side, so they are read together where there are tiles enough for all threads.
    const bool is_whole = static_cast<int>(tiles.size()) >= kTilesPerThread * threads.num_threads();
    const int heads_per_task = is_whole ? shape.num_kv_heads : 1;
    const int tasks_per_tile = shape.num_kv_heads / heads_per_task;
    threads.run(static_cast<int>(tiles.size()) * tasks_per_tile, [&](int task) {
        const TileRange range = tiles[static_cast<std::size_t>(task / tasks_per_tile)];
        const int kv_head = task % tasks_per_tile;
        const std::int64_t first_column = static_cast<std::int64_t>(kv_head) * shape.heads_per_group() * shape.head_dim;
        AttentionTile tile{};
        tile.query = query + range.first_row * query_stride + first_column;
        tile.query_stride = query_stride;
        tile.out = out + range.first_row * out_stride + first_column;
        tile.out_stride = out_stride;
        tile.rows = rows.data() + range.first_row;
        tile.num_rows = range.num_rows;
        tile.first_position = first_position;
        tile.memory = memory;
        tile.shape = shape;
        tile.first_kv_head = kv_head;
        tile.num_kv_heads = heads_per_task;
        tile.scratch = scratch_of_this_thread(attention_scratch_size(shape, range.num_rows, heads_per_task));
        kernels.attend(tile);
    });
}

}  // namespace aquiline
