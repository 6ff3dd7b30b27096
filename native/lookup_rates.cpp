#include "lookup_rates.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace aquiline {

int RateRules::cell(GuessKind kind, int match_length) const {
    const auto place = std::lower_bound(length_ends.begin(), length_ends.end(), match_length) - length_ends.begin();
    return static_cast<int>(kind) * static_cast<int>(num_lengths()) + static_cast<int>(place);
}

std::shared_ptr<const RateRules> checked(RateRules rules) {
    if (rules.generic_rates.size() != kNumGuessKinds * rules.num_lengths()) {
        throw std::invalid_argument("there must be one generic rate for every kind of guess and class of lengths");
    }
    return std::make_shared<const RateRules>(std::move(rules));
}

SharedRates::SharedRates(std::shared_ptr<const RateRules> rules) : rules_(std::move(rules)) {
    trials_.assign(rules_->generic_rates.size(), rules_->weight_of_generic);
    for (const double rate : rules_->generic_rates) hits_.push_back(rate * rules_->weight_of_generic);
}

void SharedRates::observe(std::size_t cell, bool came_true) {
    trials_[cell] += 1.0;
    if (came_true) hits_[cell] += 1.0;
    if (trials_[cell] >= rules_->most_trials) {
        trials_[cell] /= 2.0;
        hits_[cell] /= 2.0;
    }
}

SourceRates::SourceRates(RateRules rules) {
    const std::shared_ptr<const RateRules> shared = checked(std::move(rules));
    own = std::make_shared<SharedRates>(shared);
    history = std::make_shared<SharedRates>(shared);
}

RequestRates::RequestRates(std::shared_ptr<SharedRates> shared) : shared_(std::move(shared)) {
    const std::size_t num_cells = rules().generic_rates.size();
    trials_.assign(num_cells, 0.0);
    hits_.assign(num_cells, 0.0);
    for (std::size_t cell = 0; cell < num_cells; ++cell) rates_.push_back(shared_->rate(cell));
}

void RequestRates::observe(int cell, bool came_true) {
    const auto index = static_cast<std::size_t>(cell);
    const double weight = rules().weight_of_shared;
    shared_->observe(index, came_true);
    trials_[index] += 1.0;
    if (came_true) hits_[index] += 1.0;
    rates_[index] = (hits_[index] + weight * shared_->rate(index)) / (trials_[index] + weight);
}

}  // namespace aquiline
