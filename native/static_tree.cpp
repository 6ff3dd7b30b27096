#include "static_tree.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace aquiline {

StaticTree::StaticTree(std::vector<int> parents, std::vector<int> ranks)
    : parents_(std::move(parents)), ranks_(std::move(ranks)) {
    check();
    depths_.assign(parents_.size(), 0);
    has_children_.assign(parents_.size(), false);
    for (std::size_t node = 1; node < parents_.size(); ++node) {
        const auto parent = static_cast<std::size_t>(parents_[node]);
        depths_[node] = depths_[parent] + 1;
        has_children_[parent] = true;
    }
    const int deepest = *std::max_element(depths_.begin(), depths_.end());
    for (int depth = 0; depth < deepest; ++depth) levels_.push_back(level_at(depth));
    for (std::size_t depth = 1; depth < levels_.size(); ++depth) {
        const std::vector<int>& above = levels_[depth - 1].expanded;
        TreeLevel& level = levels_[depth];
        for (std::size_t place = 0; place < level.expanded.size(); ++place) {
            const int parent = parents_[static_cast<std::size_t>(level.expanded[place])];
            level.parent_places[place] = static_cast<int>(std::find(above.begin(), above.end(), parent) - above.begin());
        }
    }
}

void StaticTree::check() const {
    if (parents_.empty() || parents_.size() != ranks_.size() || parents_[0] != -1) {
        throw std::invalid_argument("a tree needs a root, and a parent and a rank for every node");
    }
    for (int node = 1; node < num_nodes(); ++node) {
        const int parent = parents_[static_cast<std::size_t>(node)];
        const int rank = ranks_[static_cast<std::size_t>(node)];
        if (parent < 0 || parent >= node || rank < 0 || rank >= num_nodes()) {
            throw std::invalid_argument("a node must come behind its parent, and its rank must be below the node count");
        }
    }
}

TreeLevel StaticTree::level_at(int depth) const {
    TreeLevel level;
    for (int node = 0; node < num_nodes(); ++node) {
        const auto index = static_cast<std::size_t>(node);
        if (depths_[index] == depth && has_children_[index]) {
            const std::vector<int> path = path_to(node);
            level.expanded.push_back(node);
            level.paths.insert(level.paths.end(), path.begin(), path.end());
        } else if (depths_[index] == depth + 1) {
            const auto parent = std::find(level.expanded.begin(), level.expanded.end(), parents_[index]);
            level.children.push_back(node);
            level.child_places.push_back(static_cast<int>(parent - level.expanded.begin()));
            level.child_ranks.push_back(ranks_[index]);
            level.width = std::max(level.width, ranks_[index] + 1);
        }
    }
    level.parent_places.assign(level.expanded.size(), 0);
    return level;
}

std::vector<int> StaticTree::path_to(int node) const {
    std::vector<int> path;
    for (; node > 0; node = parents_[static_cast<std::size_t>(node)]) path.push_back(node);
    std::reverse(path.begin(), path.end());
    return path;
}

}  // namespace aquiline
