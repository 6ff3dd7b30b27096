#include "tree_walk.h"

#include <algorithm>

namespace aquiline {
namespace {

// The lowest child of `node` with this token; -1 when there is none.
int child_with(const std::int64_t* tokens, const std::int64_t* parents, int num_nodes, int node, std::int64_t token) {
    for (int child = 0; child < num_nodes; ++child) {
        if (parents[child] == node && tokens[child] == token) return child;
    }
    return -1;
}

}  // namespace

void walk_trees(const WalkedTrees& trees, const PathArrays& paths) {
    for (std::int64_t request = 0; request < trees.num_requests; ++request) {
        const std::int64_t first_node = request * trees.num_nodes;
        const std::int64_t* drawn = paths.drawn + first_node;
        std::int64_t* nodes = paths.nodes + request * trees.max_depth;
        std::int64_t* token_ids = paths.token_ids + request * (trees.max_depth + 1);
        std::fill_n(nodes, trees.max_depth, -1);
        std::fill_n(token_ids, trees.max_depth + 1, -1);
        int node = 0, depth = 0;
        while (depth < trees.max_depth && trees.tokens != nullptr) {
            const int child = child_with(trees.tokens + first_node, trees.parents + first_node, trees.num_nodes, node,
                                         drawn[node]);
            if (child < 0) break;
            node = child;
            nodes[depth] = child;
            token_ids[depth++] = trees.tokens[first_node + child];
        }
        paths.num_accepted[request] = depth;
        paths.bonus[request] = drawn[node];
        token_ids[depth] = drawn[node];
    }
}

}  // namespace aquiline
