#include "row_builder.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bounds.h"

namespace aquiline {

RowBuilder::RowBuilder(int block_size, int first_position) : block_size_(block_size), first_position_(first_position) {
    if (block_size < 1 || first_position < 0) throw std::out_of_range("a block holds at least one slot");
}

void RowBuilder::add_run(const std::vector<std::int64_t>& block_ids, std::int64_t first_slot,
                         const std::vector<std::int64_t>& token_ids) {
    if (first_slot < first_position_) throw std::out_of_range("no row stands before the first position");
    const std::int64_t count = static_cast<std::int64_t>(token_ids.size());
    const std::vector<std::int64_t>& keys = key_slots(block_ids, first_slot + count);
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t logical_slot = first_slot + i;
        add_row(token_ids[static_cast<std::size_t>(i)], logical_slot, keys[static_cast<std::size_t>(logical_slot)]);
        attention_.push_back({keys.data(), nullptr, static_cast<int>(logical_slot) + 1, 0});
    }
}

void RowBuilder::add_tree(const std::vector<std::int64_t>& block_ids, std::int64_t root_slot,
                          std::int64_t first_scratch_slot, const TreeArrays& tree) {
    if (root_slot < first_position_) throw std::out_of_range("no row stands before the first position");
    const std::vector<std::int64_t>& keys = key_slots(block_ids, root_slot + 1);
    const int visible_len = static_cast<int>(root_slot) + 1;
    std::int64_t deepest = 0;
    for (int node = 0; node < tree.num_nodes; ++node) deepest = std::max(deepest, tree.depths[node]);
    tables_.emplace_back(static_cast<std::size_t>(tree.num_nodes) * static_cast<std::size_t>(deepest));
    std::int64_t* path = tables_.back().data();
    for (int node = 0; node < tree.num_nodes; ++node, path += deepest) {
        const std::int64_t depth = node == 0 ? 0 : tree.depths[node];
        const std::int64_t slot = node == 0 ? keys[static_cast<std::size_t>(root_slot)] : first_scratch_slot + node - 1;
        add_row(tree.tokens[node], root_slot + depth, slot);
        const std::int64_t parent = tree.parents[node];
        if (node == 0 || parent < 0) {
            attention_.push_back({keys.data(), nullptr, visible_len, 0});
            continue;
        }
        if (parent >= node || depth != (parent == 0 ? 0 : tree.depths[parent]) + 1) {
            throw std::out_of_range("node " + std::to_string(node) + " does not lie one below a node before it");
        }
        // Worked example, node 3 (depth 2) below node 1: the path of node 1 is its own slot, that of 3 both slots.
        std::copy_n(path - (node - parent) * deepest, depth - 1, path);
        path[depth - 1] = slot;
        attention_.push_back({keys.data(), path, visible_len, static_cast<int>(depth)});
    }
}

StepRows RowBuilder::rows(const RotaryTable& rotary, std::int64_t num_slots) const {
    StepRows step;
    step.num_rows = num_rows();
    step.positions = positions_.data();
    step.slots = slots_.data();
    step.num_slots = num_slots;
    step.rotary = rotary;
    step.first_position = first_position_;
    step.attention = attention_;
    check_places(step);
    for (const std::vector<std::int64_t>& table : tables_) {
        for (const std::int64_t slot : table) check_below(slot, num_slots, "slot");
    }
    return step;
}

const std::vector<std::int64_t>& RowBuilder::key_slots(const std::vector<std::int64_t>& block_ids,
                                                       std::int64_t num_slots) {
    if (num_slots > static_cast<std::int64_t>(block_ids.size()) * block_size_) {
        throw std::out_of_range(std::to_string(block_ids.size()) + " blocks do not reach slot " +
                                std::to_string(num_slots - 1));
    }
    std::vector<std::int64_t>& table = tables_.emplace_back(static_cast<std::size_t>(num_slots));
    for (std::int64_t slot = 0; slot < num_slots; ++slot) {
        table[static_cast<std::size_t>(slot)] =
            block_ids[static_cast<std::size_t>(slot / block_size_)] * block_size_ + slot % block_size_;
    }
    return table;
}

void RowBuilder::add_row(std::int64_t token_id, std::int64_t logical_slot, std::int64_t slot) {
    token_ids_.push_back(token_id);
    positions_.push_back(logical_slot - first_position_);
    slots_.push_back(slot);
    max_position_ = std::max(max_position_, positions_.back());
}

}  // namespace aquiline
