// The smallest automaton that reads exactly the parts of a text; aquiline/engine/suffix_automaton.py defines it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace aquiline {

// A part of the text that was found in it: a state of the automaton and the number of tokens.
struct Match {
    std::int32_t state = 0;
    std::int32_t length = 0;
};

// Of the transitions of a state only the two that were last taken are ever asked for in order. A text of n tokens has at
// most 2 n states and 3 n transitions (Blumer et al., 1985).
class SuffixAutomaton {
public:
    struct Transition {
        std::int32_t state;
        std::int32_t token;
        std::int32_t target;
        std::int32_t next;  // another transition of the same state; -1: this is the last
    };

    SuffixAutomaton();

    void append(std::int32_t token);
    Match own_match() const { return shortened({whole_, 0}); }
    Match shortened(Match match) const;
    Match read(Match match, std::int32_t token) const;
    Match settled(Match match) const;

    // The transition that was taken last, and the one before it; nullptr where there is none.
    const Transition* newest(std::int32_t state) const { return transition(at(state).newest); }
    const Transition* older(std::int32_t state) const { return transition(at(state).older); }

    std::int64_t num_tokens() const { return at(whole_).length; }
    std::int64_t num_states() const { return static_cast<std::int64_t>(states_.size()); }
    // What is allocated.
    std::int64_t num_bytes() const;

private:
    struct State {
        std::int32_t link = -1;
        std::int32_t length = 0;
        std::int32_t first = -1;  // of its transitions, as newest and older are
        std::int32_t newest = -1;
        std::int32_t older = -1;
        std::int32_t num_followers = 0;
    };

    const State& at(std::int32_t state) const { return states_[static_cast<std::size_t>(state)]; }
    State& at(std::int32_t state) { return states_[static_cast<std::size_t>(state)]; }
    const Transition* transition(std::int32_t index) const {
        return index < 0 ? nullptr : &transitions_[static_cast<std::size_t>(index)];
    }
    std::int32_t new_state(std::int32_t length);
    std::int32_t find(std::int32_t state, std::int32_t token) const;
    std::int32_t add(std::int32_t state, std::int32_t token, std::int32_t target);
    void take(std::int32_t state, std::int32_t index);
    void split(std::int32_t state, std::int32_t token, std::int32_t follower);
    void copy_transitions(std::int32_t from, std::int32_t to);
    std::size_t place_of(std::int32_t state, std::int32_t token) const;
    void put(std::int32_t index);
    void enlarge();

    std::vector<State> states_;
    std::vector<Transition> transitions_;
    // Transitions of states with many of them, by state and token; -1: empty. The number of places is a power of two.
    std::vector<std::int32_t> places_;
    std::size_t num_put_ = 0;
    std::int32_t whole_ = 0;
};

}  // namespace aquiline
