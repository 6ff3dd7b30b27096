#include "adjusted_logits.h"

#include <algorithm>

#include "token_mask.h"

namespace aquiline {
namespace {

const std::uint8_t* early_stop_ids(const LogitRow& row, const LogitRules& rules) {
    const std::uint8_t* stop_ids = rules.stop_ids.row_of(row.request, rules.vocab_size);
    return stop_ids != nullptr && row.output_length < rules.min_tokens[row.request] ? stop_ids : nullptr;
}

// The numbers of a vocabulary-wide row that belong to some columns; the row itself where there is one for every id.
template <class Number>
const Number* at_columns(const Number* row, const std::int64_t* column_ids, int num_columns,
                         std::vector<Number>& buffer) {
    if (row == nullptr || column_ids == nullptr) return row;
    buffer.resize(static_cast<std::size_t>(num_columns));
    for (int column = 0; column < num_columns; ++column) buffer[static_cast<std::size_t>(column)] = row[column_ids[column]];
    return buffer.data();
}

// The column of an id; num_columns where no column has it.
int column_of(std::int64_t id, const std::int64_t* column_ids, int num_columns) {
    if (column_ids == nullptr) return static_cast<int>(id);
    return static_cast<int>(std::find(column_ids, column_ids + num_columns, id) - column_ids);
}

// A path token counts as output too: its column is computed again with the occurrences on the path.
struct PathColumn {
    int column;
    float logit;
    float occurrences;
};

std::vector<PathColumn> path_columns(const LogitRow& row, const float* logits, const std::int64_t* column_ids,
                                     int num_columns) {
    std::vector<PathColumn> found;
    for (int place = 0; row.path_tokens != nullptr && place < row.path_len; ++place) {
        if (row.path_tokens[place] < 0) break;
        const int column = column_of(row.path_tokens[place], column_ids, num_columns);
        if (column == num_columns) continue;
        const auto same = std::find_if(found.begin(), found.end(), [&](const PathColumn& p) { return p.column == column; });
        if (same != found.end()) {
            same->occurrences += 1.0f;
        } else {
            found.push_back({column, logits[column], 1.0f});
        }
    }
    return found;
}

}  // namespace

bool needs_adjusting(const LogitRow& row, const LogitRules& rules) {
    return row.mask != nullptr || rules.bias.row_of(row.request, rules.vocab_size) != nullptr ||
           early_stop_ids(row, rules) != nullptr || rules.output_counts.row_of(row.request, rules.vocab_size) != nullptr;
}

const float* adjust_row(const LogitKernels& kernels, const float* logits, int num_columns, const LogitRow& row,
                        const LogitRules& rules, const std::int64_t* column_ids, AdjustedRow& buffer) {
    if (!needs_adjusting(row, rules)) return logits;
    buffer.logits.resize(static_cast<std::size_t>(num_columns));
    float* const out = buffer.logits.data();
    const float* current = logits;
    if (row.mask != nullptr) {
        // Memory of its own, to come back to where the bias bans all of it.
        buffer.allowed.resize(static_cast<std::size_t>(num_columns));
        float* const allowed = buffer.allowed.data();
        if (keep_allowed(current, row.mask, column_ids, num_columns, allowed)) current = allowed;
    }
    const float* bias = rules.bias.row_of(row.request, rules.vocab_size);
    bias = at_columns(bias, column_ids, num_columns, buffer.numbers);
    if (bias != nullptr && kernels.add_bias(current, bias, num_columns, out)) current = out;
    const std::uint8_t* banned = at_columns(early_stop_ids(row, rules), column_ids, num_columns, buffer.flags);
    if (banned != nullptr && kernels.has_unbanned(current, banned, num_columns)) {
        kernels.ban(current, banned, num_columns, out);
        current = out;
    }
    const float* counts = rules.output_counts.row_of(row.request, rules.vocab_size);
    if (counts == nullptr) return current;
    const std::uint8_t* seen = rules.prompt_seen.row_of(row.request, rules.vocab_size);
    const PenaltyRow penalties{at_columns(counts, column_ids, num_columns, buffer.numbers),
                               at_columns(seen, column_ids, num_columns, buffer.flags), rules.repetition[row.request],
                               rules.presence[row.request], rules.frequency[row.request]};
    const std::vector<PathColumn> path = path_columns(row, current, column_ids, num_columns);
    kernels.penalise(current, penalties, num_columns, out);
    for (const PathColumn& place : path) {
        const float occurrences = penalties.counts[place.column] + place.occurrences;
        PenaltyRow own = penalties;
        own.counts = &occurrences;
        own.prompt_seen = nullptr;  // a token of the output counts as seen anyway
        kernels.penalise(&place.logit, own, 1, out + place.column);
    }
    return out;
}

}  // namespace aquiline
