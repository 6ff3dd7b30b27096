// Which positions of a chunk rows see. See lanes.h for why everything here has internal linkage.
#pragma once

#include <algorithm>

#include "attention.h"

namespace aquiline {
namespace {

// Positions of a chunk, counted from its start.
struct Span {
    int first;
    int end;
};

inline Span seen_span(const AttentionTile& tile, const AttentionRow& row, int chunk_start) {
    const int rest = row.num_positions() - chunk_start;
    return {std::max(tile.first_position - chunk_start, 0), std::min(rest, kContextChunk)};
}

// What the pages hold of a chunk, as far as some row of the tile sees it; an empty span where none does.
inline Span seen_pages(const AttentionTile& tile, int chunk_start) {
    Span shared{kContextChunk, 0};
    for (int row = 0; row < tile.num_rows; ++row) {
        const Span span = seen_span(tile, tile.rows[row], chunk_start);
        const int end = std::min(span.end, tile.rows[row].visible_len - chunk_start);
        if (span.first >= end) continue;
        shared = {span.first, std::max(shared.end, end)};
    }
    return shared;
}

}  // namespace
}  // namespace aquiline
