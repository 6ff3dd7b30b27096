// What requests are read for, and what ended outputs are remembered for; aquiline/engine/lookup_reader.py and
// output_history.py define it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lookup_rates.h"
#include "suffix_guesses.h"

namespace aquiline {

// The outputs of requests that have ended, in two halves: when the newer is full, the older is forgotten.
class OutputHistory {
public:
    explicit OutputHistory(std::int64_t max_tokens);

    void add(const std::vector<std::int32_t>& tokens);
    const std::shared_ptr<GuessSource>& half(bool is_older) const { return is_older ? older_ : newer_; }
    std::int64_t num_bytes() const { return newer_->num_bytes() + older_->num_bytes(); }

private:
    std::int64_t tokens_per_half_;
    std::shared_ptr<GuessSource> newer_, older_;
    std::int32_t num_texts_ = 0;  // in the newer half
};

// What all requests of an engine share.
struct LookupMemory {
    LookupMemory(RateRules greedy, RateRules sampled, std::int64_t history_tokens);

    const SourceRates& rates(bool is_sampled) const { return is_sampled ? sampled : greedy; }

    SourceRates greedy, sampled;  // of requests that take the likeliest token, and of those that draw
    std::unique_ptr<OutputHistory> history;  // nullptr: none is kept
};

// Where guesses behind the last token begin.
struct GuessStart {
    const GuessSource* source = nullptr;
    const RequestRates* rates = nullptr;
    Match match;
};

// One request's place in all sources of guesses, and the rates of each.
class LookupReader {
public:
    // `num_again`: a reader of a half that was exchanged begins anew with so many of its last tokens.
    LookupReader(std::shared_ptr<const LookupMemory> memory, bool is_sampled, std::int64_t num_prompt_tokens,
                 std::int64_t num_again);

    std::int64_t num_read() const { return num_read_; }
    // Takes in `tokens`, which stand behind those that were read; `last` are the last ones of the whole text.
    void read(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& last);
    // Whether `read` needs the last tokens of the text, and how many.
    std::int64_t num_needed_again() const;
    std::vector<GuessStart> starts() const;
    std::int64_t num_bytes() const { return own_.num_bytes(); }

private:
    struct Half {
        bool is_older = false;
        std::shared_ptr<GuessSource> source;
        Match match;
    };

    const OutputHistory* history() const { return memory_->history.get(); }

    std::shared_ptr<const LookupMemory> memory_;
    std::int64_t num_prompt_tokens_, num_again_, num_read_ = 0;
    GuessSource own_;
    RequestRates own_rates_, history_rates_;
    std::vector<Half> halves_;
};

}  // namespace aquiline
