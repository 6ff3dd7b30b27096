#include "draft_rows.h"

#include <stdexcept>
#include <string>

#include "bounds.h"

namespace aquiline {

namespace {

constexpr int kFirstDraftPosition = 1;  // slot 0 has no draft row: no token before it has a feature

}  // namespace

DraftRowBuilder::DraftRowBuilder(const SlotRegions& regions, std::int64_t num_slots, const RotaryTable& rotary,
                                 const std::vector<DraftRequest>& requests)
    : regions_(regions), num_slots_(num_slots), rotary_(rotary), requests_(requests) {
    if (regions.num_slots() > num_slots) {
        throw std::out_of_range("the memory has " + std::to_string(num_slots) + " slots; the regions need " +
                                std::to_string(regions.num_slots()));
    }
    page_slots_.reserve(requests.size());
    for (const DraftRequest& request : requests) add_request(request);
}

void DraftRowBuilder::add_request(const DraftRequest& request) {
    check_below(request.row, regions_.max_num_seqs, "device row");
    if (request.num_draft_rows < 0 || request.token_ids.empty()) {
        throw std::out_of_range("a request needs at least one new draft row");
    }
    const std::int64_t num_positions = request.root() + 1;
    const auto num_blocks = static_cast<std::int64_t>(request.block_ids.size());
    if (num_positions > num_blocks * regions_.block_size) {
        throw std::out_of_range("a table of " + std::to_string(num_blocks) + " blocks does not reach position " +
                                std::to_string(request.root()));
    }
    std::vector<std::int64_t> slots;
    slots.reserve(static_cast<std::size_t>(num_positions + regions_.block_size));
    for (std::int64_t first = 0; first < num_positions; first += regions_.block_size) {
        const std::int64_t block = request.block_ids[static_cast<std::size_t>(first / regions_.block_size)];
        check_below(block, regions_.num_blocks, "block");
        for (std::int64_t i = 0; i < regions_.block_size; ++i) slots.push_back(block * regions_.block_size + i);
    }
    page_slots_.push_back(std::move(slots));
}

DraftRows DraftRowBuilder::extend_rows() const {
    DraftRows rows;
    for (std::size_t index = 0; index < requests_.size(); ++index) {
        const DraftRequest& request = requests_[index];
        const std::vector<std::int64_t>& pages = page_slots_[index];
        rows.token_ids.insert(rows.token_ids.end(), request.token_ids.begin(), request.token_ids.end());
        for (std::int64_t position = request.num_draft_rows + 1; position <= request.root(); ++position) {
            rows.positions.push_back(position - 1);
            rows.slots.push_back(pages[static_cast<std::size_t>(position)]);
            AttentionRow sees;
            sees.key_slots = pages.data();
            sees.visible_len = static_cast<int>(position + 1);
            rows.step.attention.push_back(sees);
        }
    }
    finish(rows);
    return rows;
}

DraftRows DraftRowBuilder::level_rows(const LevelNodes& nodes) const {
    DraftRows rows;
    const std::size_t num_rows = nodes.token_ids.size();
    const auto depth = static_cast<std::size_t>(nodes.depth);
    rows.token_ids = nodes.token_ids;
    rows.path_slots.reserve(nodes.paths.size());
    for (std::size_t row = 0; row < num_rows; ++row) {
        const std::size_t index = static_cast<std::size_t>(nodes.owners[row]);
        const DraftRequest& request = requests_[index];
        const std::int64_t first_scratch = regions_.num_page_slots() + request.row * regions_.scratch_per_row;
        for (std::size_t step = 0; step < depth; ++step) {
            const int place = nodes.paths[row * depth + step];
            check_below(place, regions_.scratch_per_row, "scratch place");
            rows.path_slots.push_back(first_scratch + place);
        }
        rows.positions.push_back(request.root() + nodes.depth - 1);
        rows.slots.push_back(rows.path_slots.back());
        AttentionRow sees;
        sees.key_slots = page_slots_[index].data();
        sees.visible_len = static_cast<int>(request.root() + 1);
        sees.path_slots = rows.path_slots.data() + row * depth;
        sees.path_len = nodes.depth;
        rows.step.attention.push_back(sees);
    }
    finish(rows);
    return rows;
}

void DraftRowBuilder::finish(DraftRows& rows) const {
    rows.step.num_rows = static_cast<int>(rows.token_ids.size());
    rows.step.positions = rows.positions.data();
    rows.step.slots = rows.slots.data();
    rows.step.num_slots = num_slots_;
    rows.step.rotary = rotary_;
    rows.step.first_position = kFirstDraftPosition;
    check_places(rows.step);
}

}  // namespace aquiline
