// Which path of each draft tree the drawn tokens accept; `accept_keyed` of aquiline/kernels/reference/accept.py.
#pragma once

#include <cstdint>

namespace aquiline {

// The trees of a step and what was drawn at their nodes, all [num_requests, num_nodes] int64. Node 0 is the root.
struct WalkedTrees {
    int num_requests;
    int num_nodes;
    int max_depth;
    const std::int64_t* tokens;   // null: every request has its root alone
    const std::int64_t* parents;  // -1 for roots and absent nodes
};

// Where results go. All int64.
struct PathArrays {
    std::int64_t* nodes;         // [num_requests, max_depth], accepted nodes below the root, padded with -1
    std::int64_t* num_accepted;  // [num_requests]
    std::int64_t* bonus;         // [num_requests]
    std::int64_t* token_ids;     // [num_requests, max_depth + 1], accepted tokens, then the bonus token, then -1
    std::int64_t* drawn;         // [num_requests, num_nodes], -1 at absent nodes
};

// Walk from each root to the lowest child that holds the token drawn at its parent, until there is none. Reads
// `paths.drawn`, writes the rest.
void walk_trees(const WalkedTrees& trees, const PathArrays& paths);

}  // namespace aquiline
