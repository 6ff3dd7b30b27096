// What the logit rules and the draw need of an instruction set; logit_lanes.h has the code.
#pragma once

#include <cstdint>

namespace aquiline {

struct Candidate;
struct NoiseKey;

// Columns of a row are looked at in blocks of this many, so that whole blocks can be passed over.
constexpr int kBlockColumns = 64;

constexpr int num_blocks(int num_columns) { return (num_columns + kBlockColumns - 1) / kBlockColumns; }

// A log-weight is a logit minus the row's largest, divided by the temperature; 0 for the most likely token.
struct LogWeightScale {
    float largest;
    float temperature;
};

// Penalties of one row. Counts cover the output, not the row's own path.
struct PenaltyRow {
    const float* counts;               // [num_columns]
    const std::uint8_t* prompt_seen;   // [num_columns], or null: no id of the prompt counts
    float repetition;
    float presence;
    float frequency;
};

// Columns `first_id` .. of a row of logits. first_id is a multiple of kBlockColumns.
struct RowPart {
    const float* logits;        // of column first_id
    const float* block_largest;  // of the block that begins there
    int count;
    std::int64_t first_id;
};

struct LogitKernels {
    // out = row + bias; whether any result is more than minus infinity.
    bool (*add_bias)(const float* row, const float* bias, int count, float* out);

    // Whether some column that is not banned has more than minus infinity, and minus infinity for those that are.
    bool (*has_unbanned)(const float* row, const std::uint8_t* is_banned, int count);
    void (*ban)(const float* row, const std::uint8_t* is_banned, int count, float* out);

    // `out` may be `row`.
    void (*penalise)(const float* row, const PenaltyRow& penalties, int count, float* out);

    // The largest of each block; a block of nothing but NaN has minus infinity.
    void (*block_largest)(const float* row, int count, float* largest);

    // Sum of the integer weights, 2^40 e^(log-weight) rounded down.
    std::int64_t (*sum_of_weights)(const RowPart& part, LogWeightScale scale);

    // Integer weights of some log-weights.
    void (*integer_weights)(const float* log_weights, int count, std::int64_t* out);

    // Columns with a log-weight of at least `cut`, in their order: log-weights and ids. Both have room for
    // kBlockColumns more than `count`.
    int (*collect)(const RowPart& part, LogWeightScale scale, float cut, float* log_weights, std::int32_t* ids);

    // The best of log-weight + Gumbel noise, of a part of a row and of collected columns.
    Candidate (*best_with_noise)(const RowPart& part, LogWeightScale scale, NoiseKey key);
    Candidate (*best_listed)(const float* log_weights, const std::int32_t* ids, int count, NoiseKey key);

    // out = log-weight + the noise of ids[column], or of the column where ids is null. A NaN becomes minus infinity.
    void (*noisy_scores)(const float* row, const std::int64_t* ids, int count, LogWeightScale scale, NoiseKey key,
                         float* out);

    // Sum of e^(score - largest), always in the same order.
    float (*sum_of_exponentials)(const float* scores, int count, float largest);
};

}  // namespace aquiline
