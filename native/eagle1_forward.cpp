#include "eagle1_forward.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace aquiline {

Eagle1Forward::Eagle1Forward(std::shared_ptr<ThreadPool> threads, const LayerShape& shape, EmbeddingTable embedding,
                             LinearStack combine, std::vector<LayerWeights> layers)
    : threads_(std::move(threads)),
      kernels_(kernels_for(detected_level())),
      shape_(shape),
      embedding_(std::move(embedding)),
      combine_(std::move(combine)) {
    if (embedding_.width != shape.hidden_size || combine_.out_features() != shape.hidden_size ||
        combine_.in_features() != 2 * shape.hidden_size) {
        throw std::invalid_argument("embedding and projection must be as wide as the hidden states");
    }
    if (layers.empty()) throw std::invalid_argument("a draft needs at least one layer");
    layers_.reserve(layers.size());
    for (LayerWeights& layer : layers) {
        layers_.emplace_back(shape, std::move(layer), shape.hidden_size);
        if (layers_.size() > 1) layers_.back().require_input_norm();
    }
}

void Eagle1Forward::combine_features(const void* features, bool is_bfloat16, int num_rows, float* combined) {
    const int width = feature_size();
    for_rows(*threads_, num_rows, width, [&](int row) {
        const std::int64_t start = static_cast<std::int64_t>(row) * width;
        if (is_bfloat16) {
            kernels_.widen_bfloat16(static_cast<const std::uint16_t*>(features) + start, width, combined + start);
        } else {
            std::copy_n(static_cast<const float*>(features) + start, width, combined + start);
        }
    });
}

void Eagle1Forward::run(const std::int64_t* token_ids, const float* hidden_states, const StepRows& step,
                        const std::vector<KVMemory>& memory, float* head_inputs, float* next_hidden_states) {
    if (memory.size() != layers_.size()) throw std::invalid_argument("there must be K/V memory for every layer");
    embedding_.check_ids(token_ids, step.num_rows);
    const std::lock_guard<std::mutex> lock(run_mutex_);
    const int width = shape_.hidden_size;
    both_.resize(step.num_rows, 2 * width);
    hidden_.resize(step.num_rows, width);
    combine_input_.resize(combine_, step.num_rows);
    for_rows(*threads_, step.num_rows, 2 * width, [&](int row) { read_row(token_ids, hidden_states, row); });
    combine_.apply(*threads_, combine_input_.view(), step.num_rows, hidden_.row(0), width);
    const LayerContext context{*threads_, kernels_, step, workspace_};
    for (std::size_t index = 0; index < layers_.size(); ++index) layers_[index].run(context, hidden_, memory[index]);
    const std::int64_t size = static_cast<std::int64_t>(step.num_rows) * width;
    std::copy_n(hidden_.row(0), size, head_inputs);
    std::copy_n(hidden_.row(0), size, next_hidden_states);
}

void Eagle1Forward::read_row(const std::int64_t* token_ids, const float* hidden_states, int row) {
    const int width = shape_.hidden_size;
    float* embedded = both_.row(row);
    embedding_.copy_row(kernels_, token_ids[row], embedded);
    std::copy_n(hidden_states + static_cast<std::int64_t>(row) * width, width, embedded + width);
    combine_input_.set_row(row, embedded);
}

}  // namespace aquiline
