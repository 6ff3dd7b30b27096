// The rows of a forward, put together request by request from block tables and trees.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "step_rows.h"

namespace aquiline {

// One tree; arrays hold [num_nodes], node 0 is the root. A node with parent -1, the root apart, does not exist: its row
// runs, but no other row sees it.
struct TreeArrays {
    int num_nodes = 0;
    const std::int64_t* tokens = nullptr;
    const std::int64_t* parents = nullptr;
    const std::int64_t* depths = nullptr;
};

// A row at logical slot s sees the slots first_position .. s, and has the rotary position s - first_position: the target
// begins at 0; a draft, which has no row in slot 0, at 1.
class RowBuilder {
public:
    RowBuilder(int block_size, int first_position);

    // Rows in consecutive slots of a request's pages, from `first_slot` on.
    void add_run(const std::vector<std::int64_t>& block_ids, std::int64_t first_slot,
                 const std::vector<std::int64_t>& token_ids);

    // The root in `root_slot` of the pages, the nodes behind it in scratch: node n in slot first_scratch_slot + n - 1.
    void add_tree(const std::vector<std::int64_t>& block_ids, std::int64_t root_slot, std::int64_t first_scratch_slot,
                  const TreeArrays& tree);

    int num_rows() const { return static_cast<int>(token_ids_.size()); }
    std::int64_t max_position() const { return max_position_; }
    const std::int64_t* token_ids() const { return token_ids_.data(); }

    // Valid until the next row is added, and while the builder lives.
    //
    // Throws std::out_of_range if a slot or position does not exist.
    StepRows rows(const RotaryTable& rotary, std::int64_t num_slots) const;

private:
    const std::vector<std::int64_t>& key_slots(const std::vector<std::int64_t>& block_ids, std::int64_t num_slots);
    void add_row(std::int64_t token_id, std::int64_t logical_slot, std::int64_t slot);

    int block_size_;
    int first_position_;
    std::int64_t max_position_ = 0;
    std::vector<std::int64_t> token_ids_;
    std::vector<std::int64_t> positions_;
    std::vector<std::int64_t> slots_;
    std::vector<AttentionRow> attention_;
    // A deque, so that what rows point to stays where it is.
    std::deque<std::vector<std::int64_t>> tables_;
};

}  // namespace aquiline
