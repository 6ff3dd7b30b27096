// Linear layers that read the same activations, side by side in one output.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "activations.h"
#include "packed_linear.h"
#include "thread_pool.h"

namespace aquiline {

// Outputs of part 0, then those of part 1, ... A file may store q, k and v in different formats, so the parts need not
// have the same one.
class LinearStack {
public:
    LinearStack() = default;

    // Throws std::invalid_argument unless there are parts and all have the same number of inputs.
    explicit LinearStack(std::vector<std::shared_ptr<const PackedLinear>> parts);

    int in_features() const { return in_features_; }
    int out_features() const { return out_features_; }
    bool reads(ActivationKind kind) const;
    std::int64_t num_bytes() const;

    void apply(ThreadPool& threads, const Activations& activations, int num_rows, float* out,
               std::int64_t out_stride) const;
    void add_to(ThreadPool& threads, const Activations& activations, int num_rows, float* out,
                std::int64_t out_stride) const;

private:
    std::vector<std::shared_ptr<const PackedLinear>> parts_;
    int in_features_ = 0;
    int out_features_ = 0;
};

// Activations in every form that the parts of a stack read. Grows to the largest step it has seen.
class StackInput {
public:
    void resize(const LinearStack& stack, int num_rows);

    // `values` holds as many numbers as the stack has inputs.
    void set_row(int row, const float* values);

    const Activations& view() const { return view_; }

private:
    void resize_form(ActivationBuffer& buffer, ActivationKind kind, const LinearStack& stack, int num_rows);

    ActivationBuffer bfloat16_;
    ActivationBuffer quantized_;
    Activations view_;
    int in_features_ = 0;
    bool uses_bfloat16_ = false;
    bool uses_quantized_ = false;
};

}  // namespace aquiline
