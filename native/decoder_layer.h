// One Llama decoder layer, shared by target and draft. Rows are float32 between operations; K and V are stored in the
// type of their memory.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "kernel_table.h"
#include "linear_stack.h"
#include "step_rows.h"
#include "workspace.h"

namespace aquiline {

struct LayerShape {
    HeadShape heads;
    int hidden_size = 0;
    int intermediate_size = 0;
    float rms_norm_epsilon = 0.0f;
};

struct LayerWeights {
    LinearStack query_key_value;
    LinearStack output;
    LinearStack gate_up;
    LinearStack down;
    std::vector<float> input_norm;  // empty: attention reads the rows as they are
    std::vector<float> post_attention_norm;
};

// What the layers of one forward share.
struct LayerContext {
    ThreadPool& threads;
    const KernelTable& kernels;
    const StepRows& step;
    LayerWorkspace& workspace;
};

class DecoderLayer {
public:
    // Throws std::invalid_argument if the weights do not fit the shape; `input_width` is the width of what attention
    // reads, which is twice the hidden size in the first layer of an EAGLE-3 head.
    DecoderLayer(const LayerShape& shape, LayerWeights weights, int input_width);

    const LayerWeights& weights() const { return weights_; }

    // Throws std::invalid_argument if the layer has none.
    void require_input_norm() const;

    // hidden += attention(norm(hidden)), hidden += mlp(norm(hidden)); hidden [num_rows, hidden_size].
    void run(const LayerContext& context, const RowMatrix& hidden, const KVMemory& memory) const;

    // hidden += attention(input), for rows that the caller has normalised.
    void attend(const LayerContext& context, const Activations& input, const RowMatrix& hidden,
                const KVMemory& memory) const;

    // hidden += mlp(norm(hidden)).
    void feed_forward(const LayerContext& context, const RowMatrix& hidden) const;

private:
    void rotate_and_store(const LayerContext& context, const KVMemory& memory, int row) const;
    void feed_forward_block(const LayerContext& context, const RowMatrix& hidden, int first_row, int num_rows) const;

    LayerShape shape_;
    LayerWeights weights_;
};

// input[row] = norm(hidden[row]) for every row, in the form that `stack` reads; without weights the row itself.
void normalise_rows(const LayerContext& context, const RowMatrix& hidden, const std::vector<float>& weight,
                    float epsilon, const LinearStack& stack, StackInput& input);

}  // namespace aquiline
