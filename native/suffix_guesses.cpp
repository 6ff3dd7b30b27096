#include "suffix_guesses.h"

namespace aquiline {
namespace {

using Transition = SuffixAutomaton::Transition;

void add(Guesses& found, const Transition* taken, int cell, Match match) {
    if (taken == nullptr || taken->token < 0) return;
    found.each[static_cast<std::size_t>(found.count++)] = {taken->token, cell, match.state,
                                                           {taken->target, match.length + 1}};
}

}  // namespace

Guesses GuessSource::guesses(Match match, const RateRules& rules) const {
    while (automaton.newest(match.state) == nullptr && match.state) match = automaton.shortened(match);
    Guesses found;
    if (!match.state) return found;
    const Transition* first = automaton.newest(match.state);
    const Transition* second = automaton.older(match.state);
    const bool is_only = second == nullptr, is_again = is_confirmed(match.state);
    const GuessKind first_kind = is_only ? (is_again ? GuessKind::only_again : GuessKind::only)
                                         : (is_again ? GuessKind::newest_again : GuessKind::newest);
    add(found, first, rules.cell(first_kind, match.length), match);
    if (!is_only) {
        add(found, second, rules.cell(GuessKind::older, match.length), match);
        return found;
    }
    const Match shorter = automaton.shortened(match);
    if (!shorter.state) return found;
    second = automaton.newest(shorter.state);
    if (second != nullptr && second->token == first->token) second = automaton.older(shorter.state);
    add(found, second, rules.cell(GuessKind::shorter, match.length), shorter);
    return found;
}

void GuessSource::learn(Match match, std::int32_t token, RequestRates& rates) {
    const Guesses found = guesses(match, rates.rules());
    for (const Guess& guess : found) rates.observe(guess.cell, guess.token == token);
    if (found.count) confirm(found.each[0], found.each[0].token == token);
}

void GuessSource::confirm(const Guess& guess, bool is_right) {
    const auto state = static_cast<std::size_t>(guess.state);
    if (state >= confirmed_.size()) {
        if (!is_right) return;
        confirmed_.resize(static_cast<std::size_t>(automaton.num_states()));
    }
    confirmed_[state] = is_right;
}

std::int64_t GuessSource::num_bytes() const {
    return automaton.num_bytes() + static_cast<std::int64_t>(confirmed_.capacity() / 8);
}

}  // namespace aquiline
