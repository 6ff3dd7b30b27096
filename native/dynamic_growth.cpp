#include "dynamic_growth.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace aquiline {

namespace {

struct Node {
    std::int64_t token;
    float value;
    int parent;        // candidate number, -1 for a child of the root
    int parent_place;  // among the nodes of its tree that were expanded before
    int depth;
};

// A candidate that grows children, and the way down to it.
struct Expanded {
    int candidate;
    int parent;  // number among the nodes of all trees that were expanded before
    std::vector<int> places;
    std::vector<std::int64_t> tokens;
};

// The candidates of one request, in creation order, and those that are being expanded.
struct Candidates {
    std::vector<Node> nodes;
    std::vector<Expanded> frontier;
    int first_expanded = 0;  // number of the first of them among those of all trees
};

// What a candidate has to be worth.
class LeastValue {
public:
    explicit LeastValue(const DynamicShape& shape)
        : is_set_(shape.drops_unlikely()), value_(static_cast<float>(std::log(shape.least_survival))) {}

    // What is no number is worth nothing, but is kept where everything is.
    bool holds(float value) const { return !is_set_ || value >= value_; }

private:
    bool is_set_;
    float value_;
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
    count = std::min(count, static_cast<int>(order.size()));
    std::partial_sort(order.begin(), order.begin() + count, order.end(), is_better);
    order.resize(static_cast<std::size_t>(count));
    return order;
}

// Children of the root, all of which are expanded next.
void add_first_level(Candidates& own, const Proposals& best, int tree, const LeastValue& least) {
    for (int rank = 0; rank < best.width; ++rank) {
        const auto place = static_cast<std::size_t>(tree * best.width + rank);
        if (!least.holds(best.log_confidence[place])) continue;
        const int candidate = static_cast<int>(own.nodes.size());
        own.nodes.push_back({best.token_ids[place], best.log_confidence[place], -1, 0, 1});
        own.frontier.push_back({candidate, tree, {candidate}, {best.token_ids[place]}});
    }
}

// Children of every expanded node, the best of which are expanded next.
void add_level(Candidates& own, const Proposals& best, int depth, const LeastValue& least) {
    const int topk = best.width, first = static_cast<int>(own.nodes.size());
    for (int parent = 0; parent < static_cast<int>(own.frontier.size()); ++parent) {
        const int candidate = own.frontier[static_cast<std::size_t>(parent)].candidate;
        const float above = own.nodes[static_cast<std::size_t>(candidate)].value;
        for (int rank = 0; rank < topk; ++rank) {
            const auto place = static_cast<std::size_t>((own.first_expanded + parent) * topk + rank);
            const float value = above + best.log_confidence[place];
            if (least.holds(value)) own.nodes.push_back({best.token_ids[place], value, candidate, parent, depth});
        }
    }
    std::vector<Expanded> next;
    for (const int chosen : most_valuable(own.nodes, first, topk)) {
        const Node& node = own.nodes[static_cast<std::size_t>(chosen)];
        Expanded grown = own.frontier[static_cast<std::size_t>(node.parent_place)];
        grown.candidate = chosen;
        grown.parent = own.first_expanded + node.parent_place;
        grown.places.push_back((depth - 1) * topk + static_cast<int>(next.size()));
        grown.tokens.push_back(node.token);
        next.push_back(std::move(grown));
    }
    own.frontier = std::move(next);
}

// The frontiers of all trees, as the draft takes them.
struct Level {
    LevelNodes nodes;
    std::vector<int> parents;
    std::vector<std::int64_t> path_tokens;  // draft tokens down to each node
};

Level level_of(std::vector<Candidates>& trees, int depth) {
    Level level;
    level.nodes.depth = depth;
    for (std::size_t tree = 0; tree < trees.size(); ++tree) {
        trees[tree].first_expanded = static_cast<int>(level.parents.size());
        for (const Expanded& node : trees[tree].frontier) {
            level.nodes.owners.push_back(static_cast<int>(tree));
            level.nodes.token_ids.push_back(node.tokens.back());
            level.nodes.paths.insert(level.nodes.paths.end(), node.places.begin(), node.places.end());
            level.path_tokens.insert(level.path_tokens.end(), node.tokens.begin(), node.tokens.end());
            level.parents.push_back(node.parent);
        }
    }
    return level;
}

// Keep the most valuable candidates, in creation order, and number them anew behind the root.
//
// Worked example, candidates 0 and 1 below the root, 2 and 3 below 0; kept are 0, 1 and 3:
//
//     candidate      0   1   2   3
//     new number     1   2   -   3
//     new parent     0   0   -   1
//
// Returns the survival of the root and of every kept node.
std::vector<double> keep_best(const Candidates& own, int count, std::int64_t first, const NodeArrays& out) {
    std::vector<int> kept = most_valuable(own.nodes, 0, count);
    std::sort(kept.begin(), kept.end());
    std::vector<int> new_number(own.nodes.size(), 0);
    std::vector<double> survivals{1.0};
    for (std::size_t index = 0; index < kept.size(); ++index) {
        const Node& node = own.nodes[static_cast<std::size_t>(kept[index])];
        const std::int64_t place = first + static_cast<std::int64_t>(index) + 1;
        new_number[static_cast<std::size_t>(kept[index])] = static_cast<int>(index) + 1;
        out.tokens[place] = node.token;
        out.parents[place] = node.parent < 0 ? 0 : new_number[static_cast<std::size_t>(node.parent)];
        out.depths[place] = node.depth;
        survivals.push_back(std::exp(static_cast<double>(node.value)));
    }
    const auto num_kept = static_cast<std::int64_t>(kept.size());
    std::fill_n(out.tokens + first + num_kept + 1, count - num_kept, 0);
    std::fill_n(out.parents + first + num_kept + 1, count - num_kept, -1);
    std::fill_n(out.depths + first + num_kept + 1, count - num_kept, 1);
    std::fill_n(out.is_valid + first, num_kept + 1, true);
    std::fill_n(out.is_valid + first + num_kept + 1, count - num_kept, false);
    return survivals;
}

// Candidates of all trees; counts in `level_rows` the nodes that the draft proposed children of.
std::vector<Candidates> all_candidates(GrowthRun& run, const DynamicShape& shape, std::vector<int>& level_rows) {
    const LeastValue least(shape);
    std::vector<Candidates> trees(static_cast<std::size_t>(run.num_trees()));
    Level level;
    for (int depth = 0; depth < shape.steps; ++depth) {
        if (depth > 0) {
            level = level_of(trees, depth);
            if (level.parents.empty()) break;
            run.advance(level.nodes, level.parents);
        }
        level_rows.push_back(depth > 0 ? static_cast<int>(level.parents.size()) : run.num_trees());
        const Proposals best = run.propose(depth, level.path_tokens, shape.topk, true);
        for (int index = 0; index < run.num_trees(); ++index) {
            Candidates& own = trees[static_cast<std::size_t>(index)];
            if (depth == 0) {
                add_first_level(own, best, index, least);
            } else {
                add_level(own, best, depth + 1, least);
            }
            if (shape.drops_unlikely() && depth + 1 >= run.request(index).max_depth) own.frontier.clear();
        }
    }
    return trees;
}

}  // namespace

void DynamicShape::check() const {
    const std::int64_t wide = topk;
    if (steps < 1 || topk < 1 || num_draft_tokens < 1 || num_draft_tokens > wide + (steps - 1) * wide * wide) {
        throw std::invalid_argument("so many steps with so many children cannot have that number of nodes");
    }
    if (!(least_survival >= 0.0 && least_survival < 1.0)) {
        throw std::invalid_argument("the least survival of a node must be from 0 to below 1");
    }
}

GrownSizes grow_dynamic(GrowthRun& run, const DynamicShape& shape, const NodeArrays& out) {
    GrownSizes sizes;
    const std::vector<Candidates> trees = all_candidates(run, shape, sizes.level_rows);
    for (int index = 0; index < run.num_trees(); ++index) {
        const std::int64_t first = static_cast<std::int64_t>(index) * (shape.num_draft_tokens + 1);
        out.tokens[first] = run.request(index).token_ids.back();
        out.parents[first] = -1;
        out.depths[first] = 0;
        sizes.survivals.push_back(keep_best(trees[static_cast<std::size_t>(index)], shape.num_draft_tokens, first, out));
        sizes.row_counts.push_back(static_cast<int>(sizes.survivals.back().size()));
    }
    return sizes;
}

}  // namespace aquiline
