#include "suffix_automaton.h"

namespace aquiline {
namespace {

// States with more followers find them by hashing.
constexpr std::int32_t kMostListed = 6;
constexpr std::size_t kFewestPlaces = 64;

std::size_t hash(std::int32_t state, std::int32_t token) {
    std::uint64_t mixed = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(state)) << 32) |
                          static_cast<std::uint32_t>(token);
    mixed ^= mixed >> 33;
    mixed *= 0xff51afd7ed558ccdULL;
    mixed ^= mixed >> 29;
    mixed *= 0xc4ceb9fe1a85ec53ULL;
    mixed ^= mixed >> 32;
    return static_cast<std::size_t>(mixed);
}

}  // namespace

SuffixAutomaton::SuffixAutomaton() : states_(1) {}

std::int32_t SuffixAutomaton::new_state(std::int32_t length) {
    states_.emplace_back();
    states_.back().length = length;
    return static_cast<std::int32_t>(states_.size() - 1);
}

std::size_t SuffixAutomaton::place_of(std::int32_t state, std::int32_t token) const {
    const std::size_t last = places_.size() - 1;
    std::size_t place = hash(state, token) & last;
    while (places_[place] >= 0) {
        const Transition& there = *transition(places_[place]);
        if (there.state == state && there.token == token) break;
        place = (place + 1) & last;
    }
    return place;
}

std::int32_t SuffixAutomaton::find(std::int32_t state, std::int32_t token) const {
    const State& from = at(state);
    if (from.newest < 0 || transition(from.newest)->token == token) return from.newest;
    if (from.num_followers > kMostListed) return places_[place_of(state, token)];
    std::int32_t index = from.first;
    while (index >= 0 && transition(index)->token != token) index = transition(index)->next;
    return index;
}

void SuffixAutomaton::put(std::int32_t index) {
    if (2 * (num_put_ + 1) > places_.size()) enlarge();
    const Transition& there = *transition(index);
    places_[place_of(there.state, there.token)] = index;
    ++num_put_;
}

void SuffixAutomaton::enlarge() {
    const std::vector<std::int32_t> before = std::move(places_);
    places_.assign(before.empty() ? kFewestPlaces : 2 * before.size(), -1);
    for (const std::int32_t index : before) {
        if (index >= 0) places_[place_of(transition(index)->state, transition(index)->token)] = index;
    }
}

std::int32_t SuffixAutomaton::add(std::int32_t state, std::int32_t token, std::int32_t target) {
    const auto index = static_cast<std::int32_t>(transitions_.size());
    State& from = at(state);
    transitions_.push_back({state, token, target, from.first});
    from.first = index;
    ++from.num_followers;
    if (from.num_followers == kMostListed + 1) {
        for (std::int32_t each = index; each >= 0; each = transition(each)->next) put(each);
    } else if (from.num_followers > kMostListed) {
        put(index);
    }
    take(state, index);
    return index;
}

void SuffixAutomaton::take(std::int32_t state, std::int32_t index) {
    State& from = at(state);
    if (from.newest == index) return;
    from.older = from.newest;
    from.newest = index;
}

void SuffixAutomaton::append(std::int32_t token) {
    const std::int32_t created = new_state(at(whole_).length + 1);
    std::int32_t state = whole_, taken = -1;
    whole_ = created;
    while (state >= 0 && (taken = find(state, token)) < 0) {
        add(state, token, created);
        state = at(state).link;
    }
    if (state < 0) {
        at(created).link = 0;
        return;
    }
    take(state, taken);
    const std::int32_t follower = transition(taken)->target;
    if (at(follower).length == at(state).length + 1) {
        at(created).link = follower;
    } else {
        at(created).link = created + 1;
        split(state, token, follower);
    }
}

void SuffixAutomaton::split(std::int32_t state, std::int32_t token, std::int32_t follower) {
    const std::int32_t shorter = new_state(at(state).length + 1);
    copy_transitions(follower, shorter);
    at(shorter).link = at(follower).link;
    at(follower).link = shorter;
    while (state >= 0) {
        const std::int32_t index = find(state, token);
        if (index < 0 || transition(index)->target != follower) return;
        transitions_[static_cast<std::size_t>(index)].target = shorter;
        state = at(state).link;
    }
}

void SuffixAutomaton::copy_transitions(std::int32_t from, std::int32_t to) {
    const std::int32_t newest = at(from).newest, older = at(from).older;
    std::int32_t newest_copy = -1, older_copy = -1;
    for (std::int32_t index = at(from).first; index >= 0; index = transition(index)->next) {
        const std::int32_t copy = add(to, transition(index)->token, transition(index)->target);
        if (index == newest) newest_copy = copy;
        if (index == older) older_copy = copy;
    }
    at(to).newest = newest_copy;
    at(to).older = older_copy;
}

Match SuffixAutomaton::shortened(Match match) const {
    const std::int32_t link = match.state ? at(match.state).link : 0;
    return {link, at(link).length};
}

Match SuffixAutomaton::read(Match match, std::int32_t token) const {
    Match now = settled(match);
    std::int32_t index;
    while ((index = find(now.state, token)) < 0) {
        if (now.state == 0) return {};
        now.state = at(now.state).link;
        now.length = at(now.state).length;
    }
    return {transition(index)->target, now.length + 1};
}

Match SuffixAutomaton::settled(Match match) const {
    while (match.state && at(at(match.state).link).length >= match.length) match.state = at(match.state).link;
    return match;
}

std::int64_t SuffixAutomaton::num_bytes() const {
    return static_cast<std::int64_t>(states_.capacity() * sizeof(State) + transitions_.capacity() * sizeof(Transition) +
                                     places_.capacity() * sizeof(std::int32_t));
}

}  // namespace aquiline
