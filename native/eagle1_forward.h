// An EAGLE-1 or EAGLE-2 head (arXiv 2401.15077) over the rows of a draft level, in one call.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "decoder_layer.h"
#include "draft_forward.h"
#include "embedding_table.h"

namespace aquiline {

class Eagle1Forward : public DraftForward {
public:
    // `combine` brings embedding and hidden state, side by side, to the hidden size; the first layer may have no input
    // norm.
    //
    // Throws std::invalid_argument if weights and shape do not fit each other.
    Eagle1Forward(std::shared_ptr<ThreadPool> threads, const LayerShape& shape, EmbeddingTable embedding,
                  LinearStack combine, std::vector<LayerWeights> layers);

    int num_layers() const override { return static_cast<int>(layers_.size()); }
    int hidden_size() const override { return shape_.hidden_size; }
    int feature_size() const override { return shape_.hidden_size; }
    const HeadShape& heads() const override { return shape_.heads; }

    // The features as they are: they already are hidden states of the target.
    void combine_features(const void* features, bool is_bfloat16, int num_rows, float* combined) override;

    // `head_inputs` and `next_hidden_states` receive the same.
    void run(const std::int64_t* token_ids, const float* hidden_states, const StepRows& step,
             const std::vector<KVMemory>& memory, float* head_inputs, float* next_hidden_states) override;

private:
    void read_row(const std::int64_t* token_ids, const float* hidden_states, int row);

    std::shared_ptr<ThreadPool> threads_;
    const KernelTable& kernels_;
    LayerShape shape_;
    EmbeddingTable embedding_;
    LinearStack combine_;
    std::vector<DecoderLayer> layers_;
    std::mutex run_mutex_;
    LayerWorkspace workspace_;
    StackInput combine_input_;
    RowMatrix both_;  // embedding and hidden state
    RowMatrix hidden_;
};

}  // namespace aquiline
