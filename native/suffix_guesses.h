// Guesses of what comes next in one text, from what came before; aquiline/engine/suffix_guesses.py defines them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lookup_rates.h"
#include "suffix_automaton.h"

namespace aquiline {

struct Guess {
    std::int32_t token = -1;
    int cell = 0;
    std::int32_t state = 0;  // of the part that the token followed
    Match next;              // that part with the token behind it
};

// At most two guesses, the better one first.
struct Guesses {
    std::array<Guess, 2> each;
    int count = 0;

    const Guess* begin() const { return each.data(); }
    const Guess* end() const { return each.data() + count; }
};

// A text as a source of guesses. A negative token separates texts: it matches nothing and is never guessed.
class GuessSource {
public:
    SuffixAutomaton automaton;

    Guesses guesses(Match match, const RateRules& rules) const;
    // Learns from the token that came, where guesses were made from a match.
    void learn(Match match, std::int32_t token, RequestRates& rates);
    std::int64_t num_bytes() const;

private:
    bool is_confirmed(std::int32_t state) const {
        return static_cast<std::size_t>(state) < confirmed_.size() && confirmed_[static_cast<std::size_t>(state)];
    }
    void confirm(const Guess& guess, bool is_right);

    // States from which the last guess was right.
    std::vector<bool> confirmed_;
};

}  // namespace aquiline
