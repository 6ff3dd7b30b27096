// A draft tree whose shape is fixed before anything is drawn; aquiline/speculation.py describes the numbering.
#pragma once

#include <vector>

namespace aquiline {

// Nodes of one depth that have children, and those children. "Place" counts the expanded nodes of a level from 0.
//
// Worked example, tree:2x1, parents -1 0 0 1 2, levels at depths 0 and 1:
//
//     depth   expanded   parent_places   paths       children   child_places   width
//     0       0          0               (none)      1 2        0 0            2
//     1       1 2        0 0             (1) (2)     3 4        0 1            1
struct TreeLevel {
    std::vector<int> expanded;
    std::vector<int> parent_places;  // of each expanded node's parent in the level above; 0 for the root
    std::vector<int> paths;          // [expanded, depth], nodes from below the root down to the node itself
    std::vector<int> children;       // in node order
    std::vector<int> child_places;   // of each child's parent in this level
    std::vector<int> child_ranks;
    int width = 0;                   // children that are proposed for each expanded node
};

class StaticTree {
public:
    // Throws std::invalid_argument unless nodes are numbered root first, each behind its parent.
    StaticTree(std::vector<int> parents, std::vector<int> ranks);

    int num_nodes() const { return static_cast<int>(parents_.size()); }
    int depth() const { return static_cast<int>(levels_.size()); }
    const std::vector<TreeLevel>& levels() const { return levels_; }

private:
    void check() const;
    TreeLevel level_at(int depth) const;
    std::vector<int> path_to(int node) const;

    std::vector<int> parents_;
    std::vector<int> ranks_;
    std::vector<int> depths_;
    std::vector<bool> has_children_;
    std::vector<TreeLevel> levels_;
};

}  // namespace aquiline
