#include "eagle_forward.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace aquiline {

EagleForward::EagleForward(std::shared_ptr<ThreadPool> threads, const LayerShape& shape, EmbeddingTable embedding,
                           EagleWeights weights)
    : threads_(std::move(threads)),
      kernels_(kernels_for(detected_level())),
      shape_(shape),
      embedding_(std::move(embedding)),
      weights_(std::move(weights)) {
    const auto width = static_cast<std::size_t>(shape.hidden_size);
    if (embedding_.width != shape.hidden_size || weights_.final_norm.size() != width ||
        weights_.hidden_norm.size() != width || weights_.combine.out_features() != shape.hidden_size) {
        throw std::invalid_argument("embedding, norms and feature projection must be as wide as the hidden states");
    }
    std::size_t normalised = 0;
    for (const std::vector<float>& norm : weights_.feature_norms) normalised += norm.size();
    if (normalised != 0 && normalised != static_cast<std::size_t>(feature_size())) {
        throw std::invalid_argument("the feature norms must cover the features");
    }
    if (weights_.layers.empty()) throw std::invalid_argument("a draft needs at least one layer");
    layers_.reserve(weights_.layers.size());
    for (LayerWeights& layer : weights_.layers) {
        const int input_width = layers_.empty() ? 2 * shape.hidden_size : shape.hidden_size;
        layers_.emplace_back(shape, std::move(layer), input_width);
        layers_.back().require_input_norm();
    }
    weights_.layers.clear();
}

void EagleForward::combine_features(const void* features, bool is_bfloat16, int num_rows, float* combined) {
    const std::lock_guard<std::mutex> lock(run_mutex_);
    const int width = feature_size();
    combine_input_.resize(weights_.combine, num_rows);
    both_.resize(num_rows, width);
    for_rows(*threads_, num_rows, width, [&](int row) {
        float* wide = both_.row(row);
        const std::int64_t start = static_cast<std::int64_t>(row) * width;
        if (is_bfloat16) {
            kernels_.widen_bfloat16(static_cast<const std::uint16_t*>(features) + start, width, wide);
        } else {
            std::copy_n(static_cast<const float*>(features) + start, width, wide);
        }
        float* part = wide;
        for (const std::vector<float>& norm : weights_.feature_norms) {
            const int part_width = static_cast<int>(norm.size());
            kernels_.rms_norm(part, norm.data(), shape_.rms_norm_epsilon, part_width, part);
            part += part_width;
        }
        combine_input_.set_row(row, wide);
    });
    weights_.combine.apply(*threads_, combine_input_.view(), num_rows, combined, shape_.hidden_size);
}

void EagleForward::run(const std::int64_t* token_ids, const float* hidden_states, const StepRows& step,
                       const std::vector<KVMemory>& memory, float* head_inputs, float* next_hidden_states) {
    if (memory.size() != layers_.size()) throw std::invalid_argument("there must be K/V memory for every layer");
    embedding_.check_ids(token_ids, step.num_rows);
    const std::lock_guard<std::mutex> lock(run_mutex_);
    const int width = shape_.hidden_size;
    const DecoderLayer& first = layers_.front();
    both_.resize(step.num_rows, 2 * width);
    hidden_.resize(step.num_rows, width);
    first_input_.resize(first.weights().query_key_value, step.num_rows);
    for_rows(*threads_, step.num_rows, 2 * width, [&](int row) { start_row(token_ids, hidden_states, row); });
    const LayerContext context{*threads_, kernels_, step, workspace_};
    first.attend(context, first_input_.view(), hidden_, memory.front());
    first.feed_forward(context, hidden_);
    for (std::size_t index = 1; index < layers_.size(); ++index) {
        layers_[index].run(context, hidden_, memory[index]);
    }
    for_rows(*threads_, step.num_rows, width, [&](int row) {
        const std::int64_t start = static_cast<std::int64_t>(row) * width;
        std::copy_n(hidden_.row(row), width, next_hidden_states + start);
        kernels_.rms_norm(hidden_.row(row), weights_.final_norm.data(), shape_.rms_norm_epsilon, width,
                          head_inputs + start);
    });
}

void EagleForward::start_row(const std::int64_t* token_ids, const float* hidden_states, int row) {
    const int width = shape_.hidden_size;
    const float* state = hidden_states + static_cast<std::int64_t>(row) * width;
    float* embedded = both_.row(row);
    float* normalised = embedded + width;
    embedding_.copy_row(kernels_, token_ids[row], embedded);
    kernels_.rms_norm(embedded, layers_.front().weights().input_norm.data(), shape_.rms_norm_epsilon, width, embedded);
    kernels_.rms_norm(state, weights_.hidden_norm.data(), shape_.rms_norm_epsilon, width, normalised);
    std::copy_n(weights_.norm_before_residual ? normalised : state, width, hidden_.row(row));
    first_input_.set_row(row, embedded);
}

}  // namespace aquiline
