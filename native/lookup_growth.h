// Looked-up trees of all requests of a step, grown together; aquiline/engine/lookup_growth.py and row_worth.py define
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lookup_reader.h"

namespace aquiline {

// What rows of a step take, in any unit.
struct RowTimes {
    std::function<double(int)> time;         // of a step with so many rows
    std::function<double(int)> least_slope;  // least time per further row behind so many
};

// A step before nodes are taken.
struct WorthStart {
    int num_rows = 0;
    double expected_tokens = 0.0;
    double other_time = 0.0;   // beside the rows
    int num_first_rows = 0;    // of the step without any node
    double tree_time = 0.0;    // added where there are nodes
    bool always_pays = false;
    double least_survival = 0.0;
};

// Rows that a step holds and tokens that it is expected to commit, while trees grow.
class RowWorth {
public:
    explicit RowWorth(const WorthStart& start)
        : start_(start), num_rows_(start.num_rows), best_num_rows_(start.num_rows),
          expected_tokens_(start.expected_tokens), best_expected_tokens_(start.expected_tokens),
          least_survival_(start.least_survival) {}

    double least_survival() const { return least_survival_; }
    void take(double survival, const RowTimes& times);
    int best_num_rows() const { return best_num_rows_; }
    double best_expected_tokens() const { return best_expected_tokens_; }
    // Of the nodes taken since the start.
    int num_kept() const { return num_taken_ - (num_rows_ - best_num_rows_); }

private:
    double time(int num_rows, const RowTimes& times) const;

    WorthStart start_;
    int num_rows_, best_num_rows_, num_taken_ = 0;
    double expected_tokens_, best_expected_tokens_, least_survival_;
};

// Nodes below one root, numbered from 1, each behind its parent.
struct LookupTree {
    int max_depth = 0;
    int num_kept = 0;
    std::vector<std::int32_t> tokens;
    std::vector<int> parents;
    std::vector<double> survivals;

    // The child with this token; 0 when there is none.
    int child(int parent, std::int32_t token) const;
    int add(int parent, std::int32_t token, double survival);
};

// Whether anything that may come next, behind the last token that was read, is at least so likely.
bool has_guess(const LookupReader& reader, double least_survival);

// A tree behind the last token of each reader, of at most so many levels and nodes each; the first `num_kept` nodes of
// every tree are worth their rows.
std::vector<LookupTree> grow_lookup_trees(const std::vector<const LookupReader*>& readers,
                                          const std::vector<int>& depths, int max_draft_tokens, RowWorth& worth,
                                          const RowTimes& times);

}  // namespace aquiline
