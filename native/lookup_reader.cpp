#include "lookup_reader.h"

#include <algorithm>
#include <utility>

namespace aquiline {

OutputHistory::OutputHistory(std::int64_t max_tokens)
    : tokens_per_half_(std::max<std::int64_t>(1, max_tokens / 2)),
      newer_(std::make_shared<GuessSource>()),
      older_(std::make_shared<GuessSource>()) {}

void OutputHistory::add(const std::vector<std::int32_t>& tokens) {
    const auto size = static_cast<std::int64_t>(tokens.size());
    const std::int64_t num_kept = std::min(size, tokens_per_half_);
    if (newer_->automaton.num_tokens() + num_kept > tokens_per_half_) {
        older_ = std::move(newer_);
        newer_ = std::make_shared<GuessSource>();
        num_texts_ = 0;
    }
    for (auto token = tokens.end() - num_kept; token != tokens.end(); ++token) newer_->automaton.append(*token);
    newer_->automaton.append(-++num_texts_);
}

LookupMemory::LookupMemory(RateRules greedy_rules, RateRules sampled_rules, std::int64_t history_tokens)
    : greedy(std::move(greedy_rules)), sampled(std::move(sampled_rules)) {
    if (history_tokens > 0) history = std::make_unique<OutputHistory>(history_tokens);
}

LookupReader::LookupReader(std::shared_ptr<const LookupMemory> memory, bool is_sampled, std::int64_t num_prompt_tokens,
                           std::int64_t num_again)
    : memory_(std::move(memory)),
      num_prompt_tokens_(num_prompt_tokens),
      num_again_(num_again),
      own_rates_(memory_->rates(is_sampled).own),
      history_rates_(memory_->rates(is_sampled).history) {
    if (history() == nullptr) return;
    for (const bool is_older : {false, true}) halves_.push_back({is_older, history()->half(is_older), {}});
}

std::int64_t LookupReader::num_needed_again() const {
    const auto is_exchanged = [this](const Half& half) { return half.source != history()->half(half.is_older); };
    return std::any_of(halves_.begin(), halves_.end(), is_exchanged) ? num_again_ : 0;
}

void LookupReader::read(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& last) {
    std::int64_t place = num_read_;
    for (const std::int32_t token : tokens) {
        if (place++ >= num_prompt_tokens_) own_.learn(own_.automaton.own_match(), token, own_rates_);
        own_.automaton.append(token);
    }
    for (Half& half : halves_) {
        place = num_read_;
        for (const std::int32_t token : tokens) {
            if (place++ >= num_prompt_tokens_) half.source->learn(half.match, token, history_rates_);
            half.match = half.source->automaton.read(half.match, token);
        }
        const std::shared_ptr<GuessSource>& now = history()->half(half.is_older);
        if (half.source == now) {
            half.match = now->automaton.settled(half.match);
        } else {
            half.source = now;
            half.match = {};
            for (const std::int32_t token : last) half.match = now->automaton.read(half.match, token);
        }
    }
    num_read_ += static_cast<std::int64_t>(tokens.size());
}

std::vector<GuessStart> LookupReader::starts() const {
    std::vector<GuessStart> found{{&own_, &own_rates_, own_.automaton.own_match()}};
    for (const Half& half : halves_) found.push_back({half.source.get(), &history_rates_, half.match});
    return found;
}

}  // namespace aquiline
