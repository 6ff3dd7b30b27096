// All decoder layers of a target over the rows of a step, in one call.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "decoder_layer.h"
#include "embedding_table.h"

namespace aquiline {

// Rows of states in the type of their destination: [num_rows, width], contiguous.
struct StateOutput {
    void* rows = nullptr;
    bool is_bfloat16 = false;  // else float32
};

class LlamaForward {
public:
    // Throws std::invalid_argument if weights and shape do not fit each other.
    LlamaForward(std::shared_ptr<ThreadPool> threads, const LayerShape& shape, EmbeddingTable embedding,
                 std::vector<LayerWeights> layers, std::vector<float> final_norm, std::vector<int> aux_layer_ids);

    int num_layers() const { return static_cast<int>(layers_.size()); }
    const HeadShape& heads() const { return shape_.heads; }
    const DecoderLayer& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }

    // Writes K and V of every row to its slot, the normalised last states to `hidden_states` (float32), and the outputs
    // of the auxiliary layers side by side to `features`. Calls from several threads take turns.
    void run(const std::int64_t* token_ids, const StepRows& step, const std::vector<KVMemory>& memory,
             float* hidden_states, const StateOutput& features);

private:
    void capture(int place, const StepRows& step, const StateOutput& features) const;

    std::shared_ptr<ThreadPool> threads_;
    const KernelTable& kernels_;
    LayerShape shape_;
    EmbeddingTable embedding_;
    std::vector<DecoderLayer> layers_;
    std::vector<float> final_norm_;
    std::vector<int> aux_layer_ids_;
    std::mutex run_mutex_;
    LayerWorkspace workspace_;
    RowMatrix hidden_;
};

}  // namespace aquiline
