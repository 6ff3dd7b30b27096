// Trees whose shape the draft's confidence decides (EAGLE-2, arXiv 2406.16858, section 4).
#pragma once

#include <cstdint>
#include <vector>

#include "growth_run.h"

namespace aquiline {

struct DynamicShape {
    int steps = 1;             // depth, and the number of draft levels
    int topk = 1;              // children proposed per node, and nodes expanded per level
    int num_draft_tokens = 1;  // nodes kept in the end at most, the root not counted

    double least_survival = 0.0;  // a less likely node is neither expanded nor kept; 0: keep any

    bool drops_unlikely() const { return least_survival > 0.0; }

    // Throws std::invalid_argument if so many levels cannot have so many nodes, or if least_survival is not from 0 to
    // below 1.
    void check() const;
};

// Trees as they leave: [num_trees, num_draft_tokens + 1] each, node 0 the root with parent -1.
struct NodeArrays {
    std::int64_t* tokens = nullptr;
    std::int64_t* parents = nullptr;
    std::int64_t* depths = nullptr;
    bool* is_valid = nullptr;  // whether a place holds a node
};

// What became of the trees.
struct GrownSizes {
    std::vector<int> row_counts;                 // [num_trees], places that hold nodes, the root's included
    std::vector<int> level_rows;                 // nodes that the draft proposed children of, by depth, the roots first
    std::vector<std::vector<double>> survivals;  // [num_trees][row count], product of the confidences from the root down
};

// Expand the `topk` most promising nodes of every level, then keep the best of all. A node's value is the sum of the
// log-confidences on its path; with ties going to the earlier candidate the kept nodes always form a tree. Node j of the
// frontier at depth d uses scratch place (d - 1) * topk + j.
//
// Where the shape drops unlikely nodes, a tree may keep fewer than `num_draft_tokens`: the places behind them hold token
// 0, parent -1 and depth 1, and a node as deep as its request may have one is not expanded.
GrownSizes grow_dynamic(GrowthRun& run, const DynamicShape& shape, const NodeArrays& out);

}  // namespace aquiline
