#include "linear_stack.h"

#include <stdexcept>
#include <utility>

namespace aquiline {

LinearStack::LinearStack(std::vector<std::shared_ptr<const PackedLinear>> parts) : parts_(std::move(parts)) {
    if (parts_.empty()) throw std::invalid_argument("a stack of linear layers needs at least one");
    in_features_ = parts_.front()->in_features();
    for (const auto& part : parts_) {
        if (part->in_features() != in_features_) {
            throw std::invalid_argument("stacked linear layers must have the same number of inputs");
        }
        out_features_ += part->out_features();
    }
}

bool LinearStack::reads(ActivationKind kind) const {
    for (const auto& part : parts_) {
        if (part->activation_kind() == kind) return true;
    }
    return false;
}

std::int64_t LinearStack::num_bytes() const {
    std::int64_t total = 0;
    for (const auto& part : parts_) total += part->num_bytes();
    return total;
}

void LinearStack::apply(ThreadPool& threads, const Activations& activations, int num_rows, float* out,
                        std::int64_t out_stride) const {
    for (const auto& part : parts_) {
        part->apply(threads, activations, num_rows, out, out_stride);
        out += part->out_features();
    }
}

void LinearStack::add_to(ThreadPool& threads, const Activations& activations, int num_rows, float* out,
                         std::int64_t out_stride) const {
    for (const auto& part : parts_) {
        part->add_to(threads, activations, num_rows, out, out_stride);
        out += part->out_features();
    }
}

void StackInput::resize(const LinearStack& stack, int num_rows) {
    in_features_ = stack.in_features();
    uses_bfloat16_ = stack.reads(ActivationKind::bfloat16);
    uses_quantized_ = stack.reads(ActivationKind::quantized);
    view_ = Activations{};
    if (uses_bfloat16_) {
        resize_form(bfloat16_, ActivationKind::bfloat16, stack, num_rows);
        view_.bfloat16 = bfloat16_.view().bfloat16;
    }
    if (uses_quantized_) {
        resize_form(quantized_, ActivationKind::quantized, stack, num_rows);
        view_.quantized = quantized_.view().quantized;
    }
}

void StackInput::set_row(int row, const float* values) {
    if (uses_bfloat16_) round_row(values, in_features_, bfloat16_.bfloat16_row(row));
    if (uses_quantized_) quantize_row(values, in_features_, quantized_.quantized_row(row));
}

void StackInput::resize_form(ActivationBuffer& buffer, ActivationKind kind, const LinearStack& stack, int num_rows) {
    if (buffer.max_rows() < num_rows || buffer.in_features() != stack.in_features()) {
        buffer = ActivationBuffer(kind, num_rows, stack.in_features());
    }
}

}  // namespace aquiline
