// Trees whose shape the draft's confidence decides (EAGLE-2, arXiv 2406.16858, section 4).
#pragma once

#include <cstdint>

#include "growth_run.h"

namespace aquiline {

struct DynamicShape {
    int steps = 1;             // depth, and the number of draft levels
    int topk = 1;              // children proposed per node, and nodes expanded per level
    int num_draft_tokens = 1;  // nodes kept in the end, the root not counted

    // Throws std::invalid_argument if so many levels cannot have so many nodes.
    void check() const;
};

// Trees as they leave: [num_trees, num_draft_tokens + 1] each, node 0 the root with parent -1.
struct NodeArrays {
    std::int64_t* tokens = nullptr;
    std::int64_t* parents = nullptr;
    std::int64_t* depths = nullptr;
};

// Expand the `topk` most promising nodes of every level, then keep the best of all. A node's value is the sum of the
// log-confidences on its path; with ties going to the earlier candidate the kept nodes always form a tree. Node j of the
// frontier at depth d uses scratch place (d - 1) * topk + j.
void grow_dynamic(GrowthRun& run, const DynamicShape& shape, const NodeArrays& out);

}  // namespace aquiline
