// What every kind of draft head offers to those who extend and grow with it.
#pragma once

#include <cstdint>
#include <vector>

#include "step_rows.h"

namespace aquiline {

class DraftForward {
public:
    virtual ~DraftForward() = default;

    virtual int num_layers() const = 0;
    virtual int hidden_size() const = 0;
    virtual int feature_size() const = 0;
    virtual const HeadShape& heads() const = 0;

    // Brings target features [num_rows, feature_size], bfloat16 or float32 and contiguous, to float32
    // [num_rows, hidden_size].
    virtual void combine_features(const void* features, bool is_bfloat16, int num_rows, float* combined) = 0;

    // Rows pair `hidden_states` (float32 [num_rows, hidden_size]) of a position with the token behind it.
    // `head_inputs` receives what the head turns into logits, `next_hidden_states` what takes the place of a combined
    // feature in the next self-fed row; both float32 [num_rows, hidden_size]. Calls from several threads take turns.
    //
    // Throws std::invalid_argument if there is not memory for every layer, std::out_of_range for a token id that does
    // not exist.
    virtual void run(const std::int64_t* token_ids, const float* hidden_states, const StepRows& step,
                     const std::vector<KVMemory>& memory, float* head_inputs, float* next_hidden_states) = 0;
};

}  // namespace aquiline
