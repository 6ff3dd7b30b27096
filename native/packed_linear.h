// A linear layer whose weights are stored in the order in which the kernels read them.

#pragma once

#include <cstdint>
#include <vector>

#include "activations.h"
#include "cpu_features.h"
#include "thread_pool.h"
#include "weight_memory.h"

namespace aquiline {

// How weights are kept. The quantised formats hold groups of 32 consecutive inputs, as GGUF files do:
//     q8_0  weight = scale * q, q in -128..127
//     q4_0  weight = scale * (q - 8), q in 0..15
//     q4_1  weight = scale * q + minimum, q in 0..15
// Scales and minima are float16.
enum class WeightFormat { bf16, q8_0, q4_0, q4_1 };

constexpr int kPanelWidth = 16;

struct PanelProduct;

// Weights before they are packed: row-major [out_features, in_features].
struct DenseMatrix {
    const void* weights;
    bool is_bfloat16;  // else float32
    int out_features;
    int in_features;
};

// The rows of a GGUF tensor, block after block.
struct GgufMatrix {
    const std::uint8_t* blocks;
    int out_features;
    int in_features;
};

// y = x W^T + bias.
//
// Sixteen outputs form a panel, which is stored contiguously and streams through once per call. The bits of an output
// depend on its own row of activations and its own weights alone: neither on other rows, nor on the number of rows or
// threads.
class PackedLinear {
public:
    // Rounded to bfloat16, or quantised as q8_0 or q4_1. The threads share out the panels; `memory`, which may be null,
    // is where weights that are read together lie together.
    static PackedLinear from_matrix(ThreadPool& threads, const DenseMatrix& matrix, WeightFormat format,
                                    WeightMemory* memory);

    // From the rows of a GGUF tensor of the same type as `format`, which keeps every weight exactly.
    static PackedLinear from_gguf(ThreadPool& threads, const GgufMatrix& matrix, WeightFormat format,
                                  WeightMemory* memory);

    // Bias of `out_features` numbers, added in float32 to every row; copied.
    void set_bias(const float* bias);

    int in_features() const { return in_features_; }
    int out_features() const { return out_features_; }
    int num_panels() const { return num_panels_; }
    WeightFormat format() const { return format_; }
    ActivationKind activation_kind() const;
    std::int64_t num_bytes() const;

    // out[row, i] = y[row, i]. Strides count elements. `out` must not overlap the activations.
    void apply(ThreadPool& threads, const Activations& activations, int num_rows, float* out,
               std::int64_t out_stride) const;

    // out[row, i] += y[row, i], for residual connections.
    void add_to(ThreadPool& threads, const Activations& activations, int num_rows, float* out,
                std::int64_t out_stride) const;

    // out[row, i] = y[row, i] rounded to bfloat16.
    void apply_bfloat16(ThreadPool& threads, const Activations& activations, int num_rows, std::uint16_t* out,
                        std::int64_t out_stride) const;

    // Outputs 16 * first_panel .. 16 * end_panel - 1 of every row, on the calling thread, for callers that share out
    // the work themselves. Panels give the same bits however they are shared out.
    void apply_panels(const Activations& activations, int num_rows, int first_panel, int end_panel, float* out,
                      std::int64_t out_stride) const;

    // The weights of one output, exactly as the kernels see them; also serves as an embedding lookup.
    void unpack_row(int output, float* weights) const;

private:
    PackedLinear(WeightFormat format, int out_features, int in_features, WeightMemory* memory);

    PanelProduct product(const Activations& activations, int num_rows) const;

    WeightFormat format_;
    Level level_;
    int out_features_;
    int in_features_;
    int num_panels_;
    std::int64_t panel_bytes_;
    WeightPiece panels_;
    std::vector<float> bias_;  // empty, or one number for each column of every panel
};

}  // namespace aquiline
