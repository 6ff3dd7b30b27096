// An EAGLE-3 head (arXiv 2503.01840) over the rows of a draft level, in one call.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "decoder_layer.h"
#include "draft_forward.h"
#include "embedding_table.h"

namespace aquiline {

struct EagleWeights {
    LinearStack combine;                            // from the captured target layers to the hidden size
    std::vector<std::vector<float>> feature_norms;  // one for each captured layer, or none
    std::vector<LayerWeights> layers;               // attention of the first reads embedding and hidden side by side
    std::vector<float> hidden_norm;
    std::vector<float> final_norm;
    bool norm_before_residual = false;
};

class EagleForward : public DraftForward {
public:
    // Throws std::invalid_argument if weights and shape do not fit each other.
    EagleForward(std::shared_ptr<ThreadPool> threads, const LayerShape& shape, EmbeddingTable embedding,
                 EagleWeights weights);

    int num_layers() const override { return static_cast<int>(layers_.size()); }
    int hidden_size() const override { return shape_.hidden_size; }
    int feature_size() const override { return weights_.combine.in_features(); }
    const HeadShape& heads() const override { return shape_.heads; }

    // combined[row] = fc(norms(features[row])).
    void combine_features(const void* features, bool is_bfloat16, int num_rows, float* combined) override;

    // `head_inputs` receives the states after the final norm, `next_hidden_states` those before it.
    void run(const std::int64_t* token_ids, const float* hidden_states, const StepRows& step,
             const std::vector<KVMemory>& memory, float* head_inputs, float* next_hidden_states) override;

private:
    void start_row(const std::int64_t* token_ids, const float* hidden_states, int row);

    std::shared_ptr<ThreadPool> threads_;
    const KernelTable& kernels_;
    LayerShape shape_;
    EmbeddingTable embedding_;
    EagleWeights weights_;
    std::vector<DecoderLayer> layers_;
    std::mutex run_mutex_;
    LayerWorkspace workspace_;
    StackInput combine_input_;
    StackInput first_input_;
    RowMatrix both_;  // normalised embedding and normalised hidden state
    RowMatrix hidden_;
};

}  // namespace aquiline
