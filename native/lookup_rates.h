// How often what a text once continued with comes again; aquiline/engine/lookup_rates.py defines it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace aquiline {

// What speaks for a continuation, in the order of the Python enumeration of that name.
enum class GuessKind { only, only_again, newest, newest_again, older, shorter };
constexpr std::size_t kNumGuessKinds = 6;

struct RateRules {
    std::vector<int> length_ends;        // upper ends of the classes of match lengths; longer matches make one more
    std::vector<double> generic_rates;   // by cell
    double weight_of_generic = 0.0;
    double weight_of_shared = 0.0;
    double most_trials = 0.0;

    std::size_t num_lengths() const { return length_ends.size() + 1; }
    // The class of a guess of some kind behind a match of some length.
    int cell(GuessKind kind, int match_length) const;
};

// Throws std::invalid_argument unless there is a rate for every cell.
std::shared_ptr<const RateRules> checked(RateRules rules);

class SharedRates {
public:
    explicit SharedRates(std::shared_ptr<const RateRules> rules);

    const RateRules& rules() const { return *rules_; }
    double rate(std::size_t cell) const { return hits_[cell] / trials_[cell]; }
    void observe(std::size_t cell, bool came_true);

private:
    std::shared_ptr<const RateRules> rules_;
    std::vector<double> trials_, hits_;
};

// Rates of guesses from requests' own texts, and from a history of outputs.
struct SourceRates {
    explicit SourceRates(RateRules rules);

    std::shared_ptr<SharedRates> own, history;
};

// Rates of one request, drawn towards the shared ones as long as it has seen little.
class RequestRates {
public:
    explicit RequestRates(std::shared_ptr<SharedRates> shared);

    const RateRules& rules() const { return shared_->rules(); }
    double rate(int cell) const { return rates_[static_cast<std::size_t>(cell)]; }
    void observe(int cell, bool came_true);

private:
    std::shared_ptr<SharedRates> shared_;
    std::vector<double> trials_, hits_, rates_;
};

}  // namespace aquiline
