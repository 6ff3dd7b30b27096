// The sampling parameters of a step's requests, and the rows of logits that they apply to.
//
// aquiline/kernels/reference/sampling.py says what every rule means.
#pragma once

#include <cstdint>

#include "kernel_table.h"

namespace aquiline {

// Rows as wide as the target's vocabulary, stored only for the requests that need one.
template <class Number>
struct RequestTable {
    const Number* rows = nullptr;           // [num_slots, vocab_size]; null: no request of the step has the rule
    const std::int64_t* slots = nullptr;    // [num_requests]; 0: this request does not have it
    std::int64_t num_slots = 0;

    // Null for a request without the rule.
    const Number* row_of(int request, std::int64_t vocab_size) const {
        if (rows == nullptr || slots[request] == 0) return nullptr;
        return rows + slots[request] * vocab_size;
    }
};

// Pointers to memory that somebody else keeps alive. Null where no request of the step needs the rule.
struct LogitRules {
    int num_requests = 0;
    std::int64_t vocab_size = 0;

    RequestTable<float> bias;                  // added; minus infinity bans
    RequestTable<std::uint8_t> stop_ids;       // 1 where an id may not be drawn before min_tokens
    const std::int64_t* min_tokens = nullptr;  // [num_requests], given together with stop_ids

    RequestTable<float> output_counts;         // occurrences in the output so far
    RequestTable<std::uint8_t> prompt_seen;    // 1 for ids of the prompt
    const float* repetition = nullptr;         // [num_requests] each, given together with output_counts
    const float* presence = nullptr;
    const float* frequency = nullptr;

    const float* temperatures = nullptr;  // [num_requests], 0 is greedy; null: every request is
    const std::int64_t* top_k = nullptr;  // at least 1; the vocabulary size keeps all
    const double* top_p = nullptr;        // in (0, 1]; 1 keeps all
    const float* log_min_p = nullptr;     // minus infinity keeps all

    float temperature_of(int request) const { return temperatures == nullptr ? 0.0f : temperatures[request]; }
};

// Which noise every request draws with, and where its output begins.
struct RequestNoise {
    const std::int64_t* seeds = nullptr;           // [num_requests] each
    const std::int64_t* sample_indices = nullptr;
    const std::int64_t* prompt_lengths = nullptr;
};

// All that belongs to the requests of a step, prepared once for as long as the same requests run in the same order.
struct SamplingRequests {
    LogitRules rules;
    RequestNoise noise;
};

// One row of logits: whose it is and where in the output.
struct LogitRow {
    int request;
    std::int64_t output_length;       // output tokens before the token that the row draws
    const std::int64_t* path_tokens;  // draft tokens from below the root down to the row's own node; null: none
    int path_len;                     // an id of -1 ends the path earlier
    NoiseKey key;                     // not read where the request is greedy
    const std::uint32_t* mask = nullptr;  // what its grammar allows; null: everything
};

// What a random number is for; as NoiseStream of aquiline/kernels/reference/noise.py.
enum class NoiseStream : std::uint32_t { target = 0, draft = 1, accept = 2, residual = 3 };

// Key of the noise for the token at an absolute position, as `mix_key` of the reference.
NoiseKey mix_key(std::int64_t seed, std::int64_t sample_index, std::int64_t position, NoiseStream stream);

// The key of a request's token at a position.
NoiseKey request_key(const RequestNoise& noise, int request, std::int64_t position, NoiseStream stream);

// Throws std::out_of_range if a slot does not exist, or if a row names a request or its path an id that does not.
void check_rules(const LogitRules& rules);
void check_row(const LogitRow& row, const LogitRules& rules);

}  // namespace aquiline
