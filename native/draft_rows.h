// The rows of draft forwards: those that bring the draft cache up to date, and those of the nodes of a tree.
#pragma once

#include <cstdint>
#include <vector>

#include "step_rows.h"

namespace aquiline {

// Which slot means what; aquiline/engine/slots.py draws the regions.
struct SlotRegions {
    std::int64_t num_blocks = 0;
    std::int64_t block_size = 0;
    std::int64_t max_num_seqs = 0;
    std::int64_t scratch_per_row = 0;

    std::int64_t num_page_slots() const { return num_blocks * block_size; }
    std::int64_t num_slots() const { return num_page_slots() + max_num_seqs * scratch_per_row + 1; }
};

// A request whose newly computed tokens have no draft rows yet.
struct DraftRequest {
    std::vector<std::int64_t> block_ids;
    std::int64_t num_draft_rows = 0;      // final so far
    std::vector<std::int64_t> token_ids;  // of the rows to add, for slots num_draft_rows + 1, ...; the root comes last
    std::int64_t row = 0;                 // device row, which owns scratch
    int max_depth = 0;                    // of its tree; 0: it grows none

    // Position of the last known token.
    std::int64_t root() const { return num_draft_rows + static_cast<std::int64_t>(token_ids.size()); }
};

// Rows of one forward, and the memory that `step` points into.
struct DraftRows {
    std::vector<std::int64_t> token_ids;
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> slots;
    std::vector<std::int64_t> path_slots;
    StepRows step;
};

// Tree nodes of one depth, request by request.
struct LevelNodes {
    int depth = 0;                        // 1 is a child of the root
    std::vector<int> owners;              // [num_nodes], the request of each, rising
    std::vector<std::int64_t> token_ids;  // [num_nodes]
    std::vector<int> paths;               // [num_nodes, depth], scratch places from the top down
};

class DraftRowBuilder {
public:
    // Throws std::out_of_range if a block, slot or device row does not exist, or a table does not reach its root.
    // The requests must outlive the builder.
    DraftRowBuilder(const SlotRegions& regions, std::int64_t num_slots, const RotaryTable& rotary,
                    const std::vector<DraftRequest>& requests);

    // Rows of newly computed tokens, request by request.
    //
    // Worked example: num_draft_rows 4, root at position 6, tokens t0..t5 and root t6:
    //
    //     slot               5        6
    //     feature            h4       h5
    //     token              t5       t6
    //     rotary position    4        5
    //     sees slots         1..5     1..6
    DraftRows extend_rows() const;

    // Rows of tree nodes of the first requests. The node at depth d stands at logical position root + d, so its rotary
    // position is root + d - 1; it sees the pages up to the root and its own path.
    DraftRows level_rows(const LevelNodes& nodes) const;

private:
    void add_request(const DraftRequest& request);
    void finish(DraftRows& rows) const;

    const SlotRegions& regions_;
    std::int64_t num_slots_;
    RotaryTable rotary_;
    const std::vector<DraftRequest>& requests_;
    std::vector<std::vector<std::int64_t>> page_slots_;  // of every logical position up to the root
};

}  // namespace aquiline
