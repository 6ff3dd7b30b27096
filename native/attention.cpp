#include "attention.h"

#include <algorithm>

#include "aligned_memory.h"

namespace aquiline {

namespace {

constexpr int kTilesPerThread = 2;
// So many floats of partial sums may wait to be merged; more than that each thread merges as it goes.
constexpr std::int64_t kMaxPartialNumbers = 1 << 21;

// Neighbouring rows of one request: they read the same pages, so a tile of them rearranges every key once.
struct Tile {
    int first_row;
    int num_rows;
    int num_segments;
};

// Neighbouring K/V heads.
struct HeadRange {
    int first;
    int count;
};

std::vector<Tile> cut_into_tiles(const std::vector<AttentionRow>& rows) {
    const int num_rows = static_cast<int>(rows.size());
    std::vector<Tile> tiles;
    for (int row = 0; row < num_rows;) {
        int end = row, longest = 0;
        for (; end < num_rows && end - row < kMaxTileRows && rows[end].key_slots == rows[row].key_slots; ++end) {
            longest = std::max(longest, rows[end].num_positions());
        }
        tiles.push_back({row, end - row, std::max(1, (longest + kContextSegment - 1) / kContextSegment)});
        row = end;
    }
    return tiles;
}

float* scratch_of_this_thread(std::int64_t size) {
    thread_local AlignedMemory<float> scratch;
    if (scratch.size() < static_cast<std::size_t>(size)) scratch = AlignedMemory<float>(static_cast<std::size_t>(size));
    return scratch.data();
}

// Partial sums that the threads of one call share; the memory is the caller's.
float* shared_partials(std::int64_t size) {
    thread_local AlignedMemory<float> partials;
    if (partials.size() < static_cast<std::size_t>(size)) partials = AlignedMemory<float>(static_cast<std::size_t>(size));
    return partials.data();
}

// What every task of a call needs. Sums of a row lie query head by query head.
class AttentionRun {
public:
    AttentionRun(const KernelTable& kernels, const AttentionRows& queries, const std::vector<AttentionRow>& rows,
                 const KVMemory& memory, const HeadShape& shape)
        : kernels_(kernels), queries_(queries), rows_(rows), memory_(memory), shape_(shape), layout_(shape) {}

    // Floats in the sums of one row over some K/V heads.
    std::int64_t row_size(int num_kv_heads) const {
        return static_cast<std::int64_t>(num_kv_heads) * shape_.heads_per_group() * layout_.size;
    }
    std::int64_t row_size() const { return row_size(shape_.num_kv_heads); }

    // `partials` are those of the first row and head; `stride` leads from row to row.
    void attend_segment(const Tile& tile, int segment, HeadRange heads, float* partials, std::int64_t stride,
                        float* scratch) const {
        const std::int64_t first_head = static_cast<std::int64_t>(heads.first) * shape_.heads_per_group();
        AttentionTile part{};
        part.query = queries_.query + tile.first_row * queries_.query_stride + first_head * shape_.head_dim;
        part.query_stride = queries_.query_stride;
        part.partials = partials;
        part.partials_stride = stride;
        part.rows = rows_.data() + tile.first_row;
        part.num_rows = tile.num_rows;
        part.first_position = queries_.first_position;
        part.segment_start = segment * kContextSegment;
        part.memory = memory_;
        part.shape = shape_;
        part.first_kv_head = heads.first;
        part.num_kv_heads = heads.count;
        part.scratch = scratch;
        kernels_.attend(part);
    }

    void merge(std::int64_t size, const float* later, float* sums) const {
        for (std::int64_t at = 0; at < size; at += layout_.size) kernels_.merge_partial(later + at, layout_, sums + at);
    }

    void finish(int row, HeadRange heads, const float* sums) const {
        const int first_head = heads.first * shape_.heads_per_group();
        float* target = queries_.out + row * queries_.out_stride + static_cast<std::int64_t>(first_head) * shape_.head_dim;
        for (int head = 0; head < heads.count * shape_.heads_per_group(); ++head, sums += layout_.size) {
            // A row that sees nothing has summed nothing; dividing by 1 leaves its zeros.
            const float divisor = sums[layout_.sum_at()] > 0.0f ? sums[layout_.sum_at()] : 1.0f;
            for (int i = 0; i < shape_.head_dim; ++i) *target++ = sums[i] / divisor;
        }
    }

    const HeadShape& shape() const { return shape_; }

private:
    const KernelTable& kernels_;
    const AttentionRows& queries_;
    const std::vector<AttentionRow>& rows_;
    const KVMemory& memory_;
    const HeadShape& shape_;
    PartialLayout layout_;
};

struct RowPartials {
    float* first;
    std::int64_t stride;  // from segment to segment
    int num_segments;
};

// Few tiles and heads: every segment of every K/V head is a task of its own, and rows are merged when all are done.
void run_by_segments(ThreadPool& threads, const AttentionRun& run, const std::vector<Tile>& tiles) {
    struct Task {
        const Tile* tile;
        int segment;
        std::int64_t partials_at;
    };
    const int num_kv_heads = run.shape().num_kv_heads;
    std::vector<Task> tasks;
    std::vector<RowPartials> rows;
    std::int64_t size = 0;
    for (const Tile& tile : tiles) size += tile.num_segments * tile.num_rows * run.row_size();
    float* const partials = shared_partials(size);
    std::int64_t next = 0;
    for (const Tile& tile : tiles) {
        const std::int64_t tile_size = tile.num_rows * run.row_size();
        for (int row = 0; row < tile.num_rows; ++row) {
            rows.push_back({partials + next + row * run.row_size(), tile_size, tile.num_segments});
        }
        for (int segment = 0; segment < tile.num_segments; ++segment, next += tile_size) {
            tasks.push_back({&tile, segment, next});
        }
    }
    threads.run(static_cast<int>(tasks.size()) * num_kv_heads, [&](int index) {
        const Task& task = tasks[static_cast<std::size_t>(index / num_kv_heads)];
        const int kv_head = index % num_kv_heads;
        float* const scratch = scratch_of_this_thread(attention_scratch_size(run.shape(), task.tile->num_rows, 1));
        run.attend_segment(*task.tile, task.segment, {kv_head, 1}, partials + task.partials_at + kv_head * run.row_size(1),
                           run.row_size(), scratch);
    });
    threads.run(static_cast<int>(rows.size()), [&](int row) {
        const RowPartials& parts = rows[static_cast<std::size_t>(row)];
        for (int segment = 1; segment < parts.num_segments; ++segment) {
            run.merge(run.row_size(), parts.first + segment * parts.stride, parts.first);
        }
        run.finish(row, {0, num_kv_heads}, parts.first);
    });
}

// Many tiles, or long ones: a task goes through all segments of some K/V heads and merges as it goes. The heads of a slot
// lie side by side, so they are read together where there are tiles enough for all threads.
void run_by_tiles(ThreadPool& threads, const AttentionRun& run, const std::vector<Tile>& tiles) {
    const bool is_whole = static_cast<int>(tiles.size()) >= kTilesPerThread * threads.num_threads();
    const int heads_per_task = is_whole ? run.shape().num_kv_heads : 1;
    const int tasks_per_tile = run.shape().num_kv_heads / heads_per_task;
    const std::int64_t row_size = run.row_size(heads_per_task);
    threads.run(static_cast<int>(tiles.size()) * tasks_per_tile, [&](int task) {
        const Tile& tile = tiles[static_cast<std::size_t>(task / tasks_per_tile)];
        const HeadRange heads{task % tasks_per_tile, heads_per_task};
        const std::int64_t size = tile.num_rows * row_size;
        float* const sums =
            scratch_of_this_thread(2 * size + attention_scratch_size(run.shape(), tile.num_rows, heads_per_task));
        run.attend_segment(tile, 0, heads, sums, row_size, sums + 2 * size);
        for (int segment = 1; segment < tile.num_segments; ++segment) {
            run.attend_segment(tile, segment, heads, sums + size, row_size, sums + 2 * size);
            run.merge(size, sums + size, sums);
        }
        for (int row = 0; row < tile.num_rows; ++row) run.finish(tile.first_row + row, heads, sums + row * row_size);
    });
}

}  // namespace

int AttentionTile::end_position() const {
    int longest = 0;
    for (int row = 0; row < num_rows; ++row) longest = std::max(longest, rows[row].num_positions());
    return std::min(longest, segment_start + kContextSegment);
}

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
    const int heads = tile.shape.heads_per_group();
    AttentionTile part = tile;
    part.query += static_cast<std::int64_t>(index) * heads * tile.shape.head_dim;
    part.partials += static_cast<std::int64_t>(index) * heads * PartialLayout(tile.shape).size;
    part.first_kv_head += index;
    part.num_kv_heads = 1;
    return part;
}

void attention(ThreadPool& threads, const KernelTable& kernels, const AttentionRows& queries,
               const std::vector<AttentionRow>& rows, const KVMemory& memory, const HeadShape& shape) {
    const std::vector<Tile> tiles = cut_into_tiles(rows);
    const AttentionRun run(kernels, queries, rows, memory, shape);
    std::int64_t num_partials = 0;
    for (const Tile& tile : tiles) num_partials += tile.num_segments * tile.num_rows * run.row_size();
    const int num_tasks = static_cast<int>(tiles.size()) * shape.num_kv_heads;
    const bool are_few = num_tasks < kTilesPerThread * threads.num_threads();
    if (threads.num_threads() > 1 && are_few && num_partials <= kMaxPartialNumbers) {
        run_by_segments(threads, run, tiles);
    } else {
        run_by_tiles(threads, run, tiles);
    }
}

}  // namespace aquiline
