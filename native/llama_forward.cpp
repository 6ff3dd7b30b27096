#include "llama_forward.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace aquiline {

LlamaForward::LlamaForward(std::shared_ptr<ThreadPool> threads, const LayerShape& shape, EmbeddingTable embedding,
                           std::vector<LayerWeights> layers, std::vector<float> final_norm,
                           std::vector<int> aux_layer_ids)
    : threads_(std::move(threads)),
      kernels_(kernels_for(detected_level())),
      shape_(shape),
      embedding_(std::move(embedding)),
      final_norm_(std::move(final_norm)),
      aux_layer_ids_(std::move(aux_layer_ids)) {
    if (embedding_.width != shape.hidden_size || static_cast<int>(final_norm_.size()) != shape.hidden_size) {
        throw std::invalid_argument("embedding and final norm must be as wide as the hidden states");
    }
    layers_.reserve(layers.size());
    for (LayerWeights& weights : layers) {
        layers_.emplace_back(shape, std::move(weights), shape.hidden_size);
        layers_.back().require_input_norm();
    }
}

void LlamaForward::run(const std::int64_t* token_ids, const StepRows& step, const std::vector<KVMemory>& memory,
                       float* hidden_states, const StateOutput& features) {
    if (memory.size() != layers_.size()) throw std::invalid_argument("there must be K/V memory for every layer");
    embedding_.check_ids(token_ids, step.num_rows);
    const std::lock_guard<std::mutex> lock(run_mutex_);
    const int width = shape_.hidden_size;
    hidden_.resize(step.num_rows, width);
    for_rows(*threads_, step.num_rows, width,
             [&](int row) { embedding_.copy_row(kernels_, token_ids[row], hidden_.row(row)); });
    const LayerContext context{*threads_, kernels_, step, workspace_};
    for (int index = 0; index < num_layers(); ++index) {
        layers_[static_cast<std::size_t>(index)].run(context, hidden_, memory[static_cast<std::size_t>(index)]);
        const auto place = std::find(aux_layer_ids_.begin(), aux_layer_ids_.end(), index);
        if (place != aux_layer_ids_.end()) capture(static_cast<int>(place - aux_layer_ids_.begin()), step, features);
    }
    for_rows(*threads_, step.num_rows, width, [&](int row) {
        kernels_.rms_norm(hidden_.row(row), final_norm_.data(), shape_.rms_norm_epsilon, width,
                          hidden_states + static_cast<std::int64_t>(row) * width);
    });
}

void LlamaForward::capture(int place, const StepRows& step, const StateOutput& features) const {
    const int width = shape_.hidden_size;
    const std::int64_t stride = static_cast<std::int64_t>(aux_layer_ids_.size()) * width;
    for_rows(*threads_, step.num_rows, width, [&](int row) {
        const std::int64_t start = row * stride + static_cast<std::int64_t>(place) * width;
        if (features.is_bfloat16) {
            kernels_.round_to_bfloat16(hidden_.row(row), width, static_cast<std::uint16_t*>(features.rows) + start);
        } else {
            std::copy_n(hidden_.row(row), width, static_cast<float*>(features.rows) + start);
        }
    });
}

}  // namespace aquiline
