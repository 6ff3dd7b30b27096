#include "packed_linear.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "panel_kernels.h"

namespace aquiline {
namespace {

PanelProduct output_into(PanelProduct product, OutputKind kind, void* out, std::int64_t out_stride) {
    product.output_kind = kind;
    product.out = out;
    product.out_stride = out_stride;
    return product;
}

void multiply_panels(Level level, const PanelProduct& product, int first_panel, int end_panel) {
#if defined(AQUILINE_HAS_X86_KERNELS)
    if (level == Level::avx512) return multiply_panels_avx512(product, first_panel, end_panel);
    if (level == Level::avx2) return multiply_panels_avx2(product, first_panel, end_panel);
#endif
    (void)level;
    multiply_panels_portable(product, first_panel, end_panel);
}

void share_out_panels(ThreadPool& threads, Level level, const PanelProduct& product, int num_panels) {
    threads.share_out(num_panels, [&](int first, int end) { multiply_panels(level, product, first, end); });
}

}  // namespace

PackedLinear::PackedLinear(WeightFormat format, int out_features, int in_features, WeightMemory* memory)
    : format_(format), level_(detected_level()), out_features_(out_features), in_features_(in_features) {
    if (out_features < 1 || in_features < 1 || in_features % kGroupSize != 0) {
        throw std::invalid_argument("a packed matrix has at least one output and a multiple of 32 inputs, not " +
                                    std::to_string(out_features) + " x " + std::to_string(in_features));
    }
    num_panels_ = (out_features + kPanelWidth - 1) / kPanelWidth;
    panel_bytes_ = panel_layout(format, in_features).panel_bytes;
    const auto num_bytes = static_cast<std::size_t>(num_panels_ * panel_bytes_);
    panels_ = memory == nullptr ? allocate_weights(num_bytes) : memory->allocate(num_bytes);
}

void PackedLinear::set_bias(const float* bias) {
    bias_.assign(static_cast<std::size_t>(num_panels_) * kPanelWidth, 0.0f);
    std::copy_n(bias, out_features_, bias_.begin());
}

ActivationKind PackedLinear::activation_kind() const {
    return format_ == WeightFormat::bf16 ? ActivationKind::bfloat16 : ActivationKind::quantized;
}

std::int64_t PackedLinear::num_bytes() const { return num_panels_ * panel_bytes_; }

PanelProduct PackedLinear::product(const Activations& activations, int num_rows) const {
    PanelProduct product{};
    product.format = format_;
    product.layout = panel_layout(format_, in_features_);
    product.in_features = in_features_;
    product.out_features = out_features_;
    product.panels = panels_.data;
    product.bias = bias_.empty() ? nullptr : bias_.data();
    product.activations = activations;
    product.num_rows = num_rows;
    return product;
}

void PackedLinear::apply(ThreadPool& threads, const Activations& activations, int num_rows, float* out,
                         std::int64_t out_stride) const {
    const auto whole = output_into(product(activations, num_rows), OutputKind::float32, out, out_stride);
    share_out_panels(threads, level_, whole, num_panels_);
}

void PackedLinear::add_to(ThreadPool& threads, const Activations& activations, int num_rows, float* out,
                          std::int64_t out_stride) const {
    const auto whole = output_into(product(activations, num_rows), OutputKind::add_float32, out, out_stride);
    share_out_panels(threads, level_, whole, num_panels_);
}

void PackedLinear::apply_bfloat16(ThreadPool& threads, const Activations& activations, int num_rows,
                                  std::uint16_t* out, std::int64_t out_stride) const {
    const auto whole = output_into(product(activations, num_rows), OutputKind::bfloat16, out, out_stride);
    share_out_panels(threads, level_, whole, num_panels_);
}

void PackedLinear::apply_panels(const Activations& activations, int num_rows, int first_panel, int end_panel,
                                float* out, std::int64_t out_stride) const {
    const auto whole = output_into(product(activations, num_rows), OutputKind::float32, out, out_stride);
    multiply_panels(level_, whole, first_panel, end_panel);
}

}  // namespace aquiline
