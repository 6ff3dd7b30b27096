#include "draft_growth.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace aquiline {

namespace {

// Tokens of every node of the step's trees: [num_trees, num_nodes].
struct TokenTable {
    std::int64_t* tokens;
    int num_nodes;

    std::int64_t& at(int tree, int node) { return tokens[static_cast<std::int64_t>(tree) * num_nodes + node]; }
};

// Draft tokens on the way down to every expanded node, [num_trees * expanded, depth].
std::vector<std::int64_t> path_tokens(const TreeLevel& level, int num_trees, TokenTable& table) {
    std::vector<std::int64_t> tokens;
    tokens.reserve(level.paths.size() * static_cast<std::size_t>(num_trees));
    for (int tree = 0; tree < num_trees; ++tree) {
        for (const int node : level.paths) tokens.push_back(table.at(tree, node));
    }
    return tokens;
}

void advance_to(GrowthRun& run, const StaticTree& shape, int depth, TokenTable& table) {
    const TreeLevel& level = shape.levels()[static_cast<std::size_t>(depth)];
    const int num_above = static_cast<int>(shape.levels()[static_cast<std::size_t>(depth - 1)].expanded.size());
    LevelNodes nodes;
    std::vector<int> parents;
    nodes.depth = depth;
    for (int tree = 0; tree < run.num_trees(); ++tree) {
        nodes.owners.insert(nodes.owners.end(), level.expanded.size(), tree);
        for (const int node : level.expanded) nodes.token_ids.push_back(table.at(tree, node));
        for (const int node : level.paths) nodes.paths.push_back(node - 1);
        for (const int place : level.parent_places) parents.push_back(tree * num_above + place);
    }
    run.advance(nodes, parents);
}

void grow_static(GrowthRun& run, const StaticTree& tree, TokenTable table) {
    const int num_levels = std::min(static_cast<int>(tree.levels().size()), run.max_depth());
    for (int depth = 0; depth < num_levels; ++depth) {
        const TreeLevel& level = tree.levels()[static_cast<std::size_t>(depth)];
        if (depth > 0) advance_to(run, tree, depth, table);
        const std::vector<std::int64_t> above = path_tokens(level, run.num_trees(), table);
        const Proposals best = run.propose(depth, above, level.width, false);
        const int num_expanded = static_cast<int>(level.expanded.size());
        for (int index = 0; index < run.num_trees(); ++index) {
            for (std::size_t child = 0; child < level.children.size(); ++child) {
                const int row = index * num_expanded + level.child_places[child];
                const int place = row * best.width + level.child_ranks[child];
                table.at(index, level.children[child]) = best.token_ids[static_cast<std::size_t>(place)];
            }
        }
    }
}

}  // namespace

DraftGrowth::DraftGrowth(std::shared_ptr<ThreadPool> threads, std::shared_ptr<DraftForward> forward,
                         std::shared_ptr<const PackedLinear> head, std::vector<std::int64_t> target_ids,
                         bool feeds_head_inputs) {
    if (head->in_features() != forward->hidden_size()) {
        throw std::invalid_argument("the head must be as wide as the draft's hidden states");
    }
    if (target_ids.size() != static_cast<std::size_t>(head->out_features())) {
        throw std::invalid_argument("there must be a target id for every output of the head");
    }
    parts_.threads = std::move(threads);
    parts_.kernels = &kernels_for(detected_level());
    parts_.forward = std::move(forward);
    parts_.head = LinearStack({std::move(head)});
    parts_.target_ids = std::move(target_ids);
    parts_.feeds_head_inputs = feeds_head_inputs;
}

void DraftGrowth::run_static(const DraftPlaces& places, const DraftBatch& batch, const SamplingRequests& sampling,
                             const StaticTree& tree, std::int64_t* tokens) {
    const std::lock_guard<std::mutex> lock(run_mutex_);
    GrowthRun run(parts_, places, batch, sampling);
    run.extend();
    TokenTable table{tokens, tree.num_nodes()};
    for (int index = 0; index < run.num_trees(); ++index) {
        std::fill_n(&table.at(index, 0), tree.num_nodes(), 0);
        table.at(index, 0) = run.request(index).token_ids.back();
    }
    if (run.num_trees() > 0) grow_static(run, tree, table);
}

GrownSizes DraftGrowth::run_dynamic(const DraftPlaces& places, const DraftBatch& batch,
                                    const SamplingRequests& sampling, const DynamicShape& shape,
                                    const NodeArrays& out) {
    shape.check();
    const std::lock_guard<std::mutex> lock(run_mutex_);
    GrowthRun run(parts_, places, batch, sampling);
    run.extend();
    return run.num_trees() > 0 ? grow_dynamic(run, shape, out) : GrownSizes{};
}

}  // namespace aquiline
