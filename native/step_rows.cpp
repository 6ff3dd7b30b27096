#include "step_rows.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "bounds.h"

namespace aquiline {

namespace {

void check_slots(const std::int64_t* slots, std::int64_t first, std::int64_t end, std::int64_t num_slots) {
    for (std::int64_t i = first; i < end; ++i) check_below(slots[i], num_slots, "slot");
}

class RowSpreader {
public:
    RowSpreader(int num_rows, int first_position, std::int64_t num_slots)
        : first_position_(first_position), num_slots_(num_slots) {
        rows_.reserve(static_cast<std::size_t>(num_rows));
    }

    void add_request(const AttentionGroupArrays& group, std::int64_t request) {
        const std::int64_t* key_slots = group.key_slots + request * group.context;
        std::int64_t longest = 0;
        for (std::int64_t query = 0; query < group.num_queries; ++query) {
            const AttentionRow row = row_of(group, key_slots, request, query);
            longest = std::max<std::int64_t>(longest, row.visible_len);
            rows_.push_back(row);
        }
        check_slots(key_slots, first_position_, longest, num_slots_);
    }

    std::vector<AttentionRow> take() { return std::move(rows_); }

private:
    AttentionRow row_of(const AttentionGroupArrays& group, const std::int64_t* key_slots, std::int64_t request,
                        std::int64_t query) const {
        AttentionRow row;
        const std::int64_t visible =
            group.visible_lens[request * group.visible_strides[0] + query * group.visible_strides[1]];
        check_below(visible, group.context + 1, "visible_len");
        row.key_slots = key_slots;
        row.visible_len = static_cast<int>(visible);
        if (group.path_slots == nullptr || visible == 0) return row;
        const std::int64_t length = group.path_lens[request * group.path_strides[0] + query * group.path_strides[1]];
        check_below(length, group.path_capacity + 1, "path_len");
        row.path_slots = group.path_slots + (request * group.num_queries + query) * group.path_capacity;
        row.path_len = static_cast<int>(length);
        check_slots(row.path_slots, 0, length, num_slots_);
        return row;
    }

    std::vector<AttentionRow> rows_;
    int first_position_;
    std::int64_t num_slots_;
};

}  // namespace

std::vector<AttentionRow> spread_groups(const std::vector<AttentionGroupArrays>& groups, int num_rows,
                                        int first_position, std::int64_t num_slots) {
    RowSpreader spreader(num_rows, first_position, num_slots);
    std::int64_t num_found = 0;
    for (const AttentionGroupArrays& group : groups) {
        num_found += group.num_reqs * group.num_queries;
        for (std::int64_t request = 0; request < group.num_reqs; ++request) spreader.add_request(group, request);
    }
    if (num_found != num_rows) {
        throw std::out_of_range("the attention groups hold " + std::to_string(num_found) + " rows; the step has " +
                                std::to_string(num_rows));
    }
    return spreader.take();
}

void check_places(const StepRows& step) {
    check_slots(step.slots, 0, step.num_rows, step.num_slots);
    for (int row = 0; row < step.num_rows; ++row) {
        check_below(step.positions[row], step.rotary.num_positions, "position");
    }
}

}  // namespace aquiline
