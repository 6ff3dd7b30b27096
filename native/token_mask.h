// Which tokens a grammar allows: id v is allowed where bit v % 32 of word v / 32 is set.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace aquiline {

constexpr std::int64_t mask_words(std::int64_t vocab_size) { return (vocab_size + 31) / 32; }

// Masks of some rows.
struct MaskRows {
    const std::uint32_t* bits = nullptr;  // [num_masks, mask_words(vocab_size)]
    std::vector<std::int64_t> rows;       // mask of each row, -1: nothing is forbidden; empty: of no row

    // Null where nothing is forbidden.
    const std::uint32_t* of_row(std::size_t row, std::int64_t vocab_size) const {
        if (rows.empty() || rows[row] < 0) return nullptr;
        return bits + rows[row] * mask_words(vocab_size);
    }
};

// Asks what may follow nodes of one depth, given the request of each and the draft tokens down to it: [num_nodes, depth].
// What it returns stays as it is until the next question.
using MaskSource = std::function<MaskRows(int depth, const std::vector<int>& owners,
                                          const std::vector<std::int64_t>& path_tokens)>;

// out = row, and minus infinity for forbidden tokens. Returns whether anything is left; where nothing is, `out` holds
// anything.
//
// column_ids: target id of each column, or null: column i is id i.
bool keep_allowed(const float* row, const std::uint32_t* mask, const std::int64_t* column_ids, int num_columns,
                  float* out);

}  // namespace aquiline
