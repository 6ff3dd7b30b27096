#include "dynamic_growth.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace aquiline {

namespace {

struct Node {
    std::int64_t token;
    float value;
    int parent;  // candidate number, -1 for a child of the root
    int depth;
};

// A candidate that grows children, and the way down to it.
struct Expanded {
    int candidate;
    int parent_place;  // among the nodes expanded before
    std::vector<int> places;
    std::vector<std::int64_t> tokens;
};

// The candidates of one request, in creation order, and those that are being expanded.
struct Candidates {
    std::vector<Node> nodes;
    std::vector<Expanded> frontier;
};

// Numbers first .. end - 1 by falling value, the earlier of equals first, cut to `count`.
std::vector<int> most_valuable(const std::vector<Node>& nodes, int first, int count) {
    std::vector<int> order(nodes.size() - static_cast<std::size_t>(first));
    std::iota(order.begin(), order.end(), first);
    const auto is_better = [&](int one, int other) {
        const float mine = nodes[static_cast<std::size_t>(one)].value;
        const float theirs = nodes[static_cast<std::size_t>(other)].value;
        return mine > theirs || (mine == theirs && one < other);
    };
    std::partial_sort(order.begin(), order.begin() + count, order.end(), is_better);
    order.resize(static_cast<std::size_t>(count));
    return order;
}

// Children of the root, all of which are expanded next.
void add_first_level(Candidates& own, const Proposals& best, int tree) {
    for (int rank = 0; rank < best.width; ++rank) {
        const auto place = static_cast<std::size_t>(tree * best.width + rank);
        own.nodes.push_back({best.token_ids[place], best.log_confidence[place], -1, 1});
        own.frontier.push_back({rank, 0, {rank}, {best.token_ids[place]}});
    }
}

// Children of every expanded node, the best of which are expanded next.
void add_level(Candidates& own, const Proposals& best, int tree, int depth) {
    const int topk = best.width, first = static_cast<int>(own.nodes.size());
    for (int parent = 0; parent < topk; ++parent) {
        const int candidate = own.frontier[static_cast<std::size_t>(parent)].candidate;
        const float value = own.nodes[static_cast<std::size_t>(candidate)].value;
        for (int rank = 0; rank < topk; ++rank) {
            const auto place = static_cast<std::size_t>((tree * topk + parent) * topk + rank);
            own.nodes.push_back({best.token_ids[place], value + best.log_confidence[place], candidate, depth});
        }
    }
    std::vector<Expanded> next;
    for (const int chosen : most_valuable(own.nodes, first, topk)) {
        const int parent = (chosen - first) / topk;
        Expanded grown = own.frontier[static_cast<std::size_t>(parent)];
        grown.candidate = chosen;
        grown.parent_place = parent;
        grown.places.push_back((depth - 1) * topk + static_cast<int>(next.size()));
        grown.tokens.push_back(own.nodes[static_cast<std::size_t>(chosen)].token);
        next.push_back(std::move(grown));
    }
    own.frontier = std::move(next);
}

// Run the draft over the frontiers; returns the draft tokens down to each of their nodes.
std::vector<std::int64_t> advance(GrowthRun& run, const std::vector<Candidates>& trees, int depth, int topk) {
    LevelNodes nodes;
    std::vector<int> parent_places;
    std::vector<std::int64_t> path_tokens;
    nodes.depth = depth;
    nodes.num_per_request = topk;
    for (const Candidates& own : trees) {
        for (const Expanded& node : own.frontier) {
            nodes.token_ids.push_back(node.tokens.back());
            nodes.paths.insert(nodes.paths.end(), node.places.begin(), node.places.end());
            path_tokens.insert(path_tokens.end(), node.tokens.begin(), node.tokens.end());
            parent_places.push_back(node.parent_place);
        }
    }
    run.advance(nodes, parent_places);
    return path_tokens;
}

// Keep the most valuable candidates, in creation order, and number them anew behind the root.
//
// Worked example, candidates 0 and 1 below the root, 2 and 3 below 0; kept are 0, 1 and 3:
//
//     candidate      0   1   2   3
//     new number     1   2   -   3
//     new parent     0   0   -   1
void keep_best(const Candidates& own, int count, std::int64_t first, const NodeArrays& out) {
    std::vector<int> kept = most_valuable(own.nodes, 0, count);
    std::sort(kept.begin(), kept.end());
    std::vector<int> new_number(own.nodes.size(), 0);
    for (std::size_t index = 0; index < kept.size(); ++index) {
        const Node& node = own.nodes[static_cast<std::size_t>(kept[index])];
        const std::int64_t place = first + static_cast<std::int64_t>(index) + 1;
        new_number[static_cast<std::size_t>(kept[index])] = static_cast<int>(index) + 1;
        out.tokens[place] = node.token;
        out.parents[place] = node.parent < 0 ? 0 : new_number[static_cast<std::size_t>(node.parent)];
        out.depths[place] = node.depth;
    }
}

}  // namespace

void DynamicShape::check() const {
    const std::int64_t wide = topk;
    if (steps < 1 || topk < 1 || num_draft_tokens < 1 || num_draft_tokens > wide + (steps - 1) * wide * wide) {
        throw std::invalid_argument("so many steps with so many children cannot have that number of nodes");
    }
}

void grow_dynamic(GrowthRun& run, const DynamicShape& shape, const NodeArrays& out) {
    std::vector<Candidates> trees(static_cast<std::size_t>(run.num_trees()));
    std::vector<std::int64_t> path_tokens;
    for (int depth = 0; depth < shape.steps; ++depth) {
        if (depth > 0) path_tokens = advance(run, trees, depth, shape.topk);
        const Proposals best = run.propose(depth, path_tokens, shape.topk, true);
        for (int index = 0; index < run.num_trees(); ++index) {
            Candidates& own = trees[static_cast<std::size_t>(index)];
            if (depth == 0) {
                add_first_level(own, best, index);
            } else {
                add_level(own, best, index, depth + 1);
            }
        }
    }
    for (int index = 0; index < run.num_trees(); ++index) {
        const std::int64_t first = static_cast<std::int64_t>(index) * (shape.num_draft_tokens + 1);
        out.tokens[first] = run.request(index).token_ids.back();
        out.parents[first] = -1;
        out.depths[first] = 0;
        keep_best(trees[static_cast<std::size_t>(index)], shape.num_draft_tokens, first, out);
    }
}

}  // namespace aquiline
