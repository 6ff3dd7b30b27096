#include "lookup_growth.h"

#include <queue>

namespace aquiline {
namespace {

// A guess that waits for its turn, and where its node would stand.
struct Waiting {
    double survival;
    int number;  // of the guess; no two have the same
    std::size_t tree;
    int parent, depth;
    Guess guess;
    GuessStart origin;

    bool operator<(const Waiting& other) const {
        return survival != other.survival ? survival < other.survival : number > other.number;
    }
};

class Growth {
public:
    Growth(std::size_t num_trees, int max_draft_tokens, RowWorth& worth, const RowTimes& times)
        : trees_(num_trees), max_draft_tokens_(max_draft_tokens), worth_(worth), times_(times) {}

    void begin(std::size_t tree, const LookupReader& reader, int max_depth) {
        trees_[tree].max_depth = max_depth;
        if (max_depth < 1 || max_draft_tokens_ < 1) return;
        for (const GuessStart& start : reader.starts()) wait(tree, 0, 1, start, 1.0);
    }

    std::vector<LookupTree> grown() {
        while (!waiting_.empty() && waiting_.top().survival >= worth_.least_survival()) {
            const Waiting next = waiting_.top();
            waiting_.pop();
            grow(next);
        }
        const auto num_kept = static_cast<std::size_t>(worth_.num_kept());
        for (std::size_t place = 0; place < num_kept; ++place) ++trees_[order_[place]].num_kept;
        return std::move(trees_);
    }

private:
    void grow(const Waiting& next) {
        LookupTree& tree = trees_[next.tree];
        int node = tree.child(next.parent, next.guess.token);
        if (node == 0) {
            if (static_cast<int>(tree.tokens.size()) == max_draft_tokens_) return;
            worth_.take(next.survival, times_);
            order_.push_back(next.tree);
            node = tree.add(next.parent, next.guess.token, next.survival);
        }
        if (next.depth == tree.max_depth) return;
        const GuessStart below{next.origin.source, next.origin.rates, next.guess.next};
        wait(next.tree, node, next.depth + 1, below, next.survival);
    }

    void wait(std::size_t tree, int parent, int depth, const GuessStart& start, double survival) {
        for (const Guess& guess : start.source->guesses(start.match, start.rates->rules())) {
            const double likely = survival * start.rates->rate(guess.cell);
            if (likely >= worth_.least_survival()) {
                waiting_.push({likely, ++num_guesses_, tree, parent, depth, guess, start});
            }
        }
    }

    std::vector<LookupTree> trees_;
    int max_draft_tokens_;
    RowWorth& worth_;
    const RowTimes& times_;
    std::priority_queue<Waiting> waiting_;
    int num_guesses_ = 0;
    std::vector<std::size_t> order_;  // the tree of every node, as they came
};

}  // namespace

double RowWorth::time(int num_rows, const RowTimes& times) const {
    const double time = times.time(num_rows) + start_.other_time;
    return num_rows > start_.num_first_rows ? time + start_.tree_time : time;
}

void RowWorth::take(double survival, const RowTimes& times) {
    ++num_rows_;
    ++num_taken_;
    expected_tokens_ += survival;
    if (start_.always_pays) {
        best_num_rows_ = num_rows_;
        best_expected_tokens_ = expected_tokens_;
        return;
    }
    if (expected_tokens_ * time(best_num_rows_, times) > best_expected_tokens_ * time(num_rows_, times)) {
        best_num_rows_ = num_rows_;
        best_expected_tokens_ = expected_tokens_;
    }
    const double best_rate = best_expected_tokens_ / time(best_num_rows_, times);
    least_survival_ = best_rate * times.least_slope(num_rows_);
}

int LookupTree::child(int parent, std::int32_t token) const {
    for (std::size_t node = 0; node < tokens.size(); ++node) {
        if (parents[node] == parent && tokens[node] == token) return static_cast<int>(node) + 1;
    }
    return 0;
}

int LookupTree::add(int parent, std::int32_t token, double survival) {
    tokens.push_back(token);
    parents.push_back(parent);
    survivals.push_back(survival);
    return static_cast<int>(tokens.size());
}

bool has_guess(const LookupReader& reader, double least_survival) {
    for (const GuessStart& start : reader.starts()) {
        for (const Guess& guess : start.source->guesses(start.match, start.rates->rules())) {
            if (start.rates->rate(guess.cell) >= least_survival) return true;
        }
    }
    return false;
}

std::vector<LookupTree> grow_lookup_trees(const std::vector<const LookupReader*>& readers,
                                          const std::vector<int>& depths, int max_draft_tokens, RowWorth& worth,
                                          const RowTimes& times) {
    Growth growth(readers.size(), max_draft_tokens, worth, times);
    for (std::size_t tree = 0; tree < readers.size(); ++tree) growth.begin(tree, *readers[tree], depths[tree]);
    return growth.grown();
}

}  // namespace aquiline
