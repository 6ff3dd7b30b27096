#include "decoder_layer.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace aquiline {

namespace {

// So many rows go through the MLP at once that its wide intermediate rows stay in the cache.
constexpr int kMlpBlockRows = 64;

void check_size(std::int64_t actual, std::int64_t expected, const char* what) {
    if (actual != expected) {
        throw std::invalid_argument(std::string(what) + " is " + std::to_string(actual) + "; the shape asks for " +
                                    std::to_string(expected));
    }
}

// A row on the way into a linear layer.
float* row_of_this_thread(int width) {
    thread_local RowMatrix scratch;
    scratch.resize(1, width);
    return scratch.row(0);
}

}  // namespace

DecoderLayer::DecoderLayer(const LayerShape& shape, LayerWeights weights, int input_width)
    : shape_(shape), weights_(std::move(weights)) {
    const HeadShape& heads = shape.heads;
    if (heads.num_kv_heads < 1 || heads.num_heads < 1 || heads.num_heads % heads.num_kv_heads != 0) {
        throw std::invalid_argument("num_heads must be a multiple of num_kv_heads");
    }
    if (heads.head_dim < 2 || heads.head_dim % 2 != 0) throw std::invalid_argument("head_dim must be even");
    const int query_width = heads.num_heads * heads.head_dim;
    check_size(weights_.query_key_value.in_features(), input_width, "width of the input of attention");
    check_size(weights_.query_key_value.out_features(), query_width + 2 * heads.num_kv_heads * heads.head_dim,
               "width of queries, keys and values");
    check_size(weights_.output.in_features(), query_width, "width of the attention output");
    check_size(weights_.output.out_features(), shape.hidden_size, "outputs of the output projection");
    check_size(weights_.gate_up.in_features(), shape.hidden_size, "width of the input of the MLP");
    check_size(weights_.gate_up.out_features(), 2 * shape.intermediate_size, "width of gate and up");
    check_size(weights_.down.in_features(), shape.intermediate_size, "inputs of the down projection");
    check_size(weights_.down.out_features(), shape.hidden_size, "outputs of the down projection");
    check_size(static_cast<std::int64_t>(weights_.post_attention_norm.size()), shape.hidden_size,
               "size of the post-attention norm");
    if (weights_.input_norm.empty()) return;
    check_size(static_cast<std::int64_t>(weights_.input_norm.size()), shape.hidden_size, "size of the input norm");
}

void DecoderLayer::require_input_norm() const {
    if (weights_.input_norm.empty()) throw std::invalid_argument("this layer must have an input norm");
}

void DecoderLayer::run(const LayerContext& context, const RowMatrix& hidden, const KVMemory& memory) const {
    StackInput& input = context.workspace.attention_input;
    normalise_rows(context, hidden, weights_.input_norm, shape_.rms_norm_epsilon, weights_.query_key_value, input);
    attend(context, input.view(), hidden, memory);
    feed_forward(context, hidden);
}

void DecoderLayer::attend(const LayerContext& context, const Activations& input, const RowMatrix& hidden,
                          const KVMemory& memory) const {
    const int num_rows = context.step.num_rows;
    LayerWorkspace& workspace = context.workspace;
    const HeadShape& heads = shape_.heads;
    const int total_width = weights_.query_key_value.out_features();
    const int query_width = heads.num_heads * heads.head_dim;
    RowMatrix& projected = workspace.query_key_value;
    projected.resize(num_rows, total_width);
    weights_.query_key_value.apply(context.threads, input, num_rows, projected.row(0), total_width);
    for_rows(context.threads, num_rows, total_width, [&](int row) { rotate_and_store(context, memory, row); });
    workspace.mixed.resize(num_rows, query_width);
    const AttentionRows queries{projected.row(0), total_width, workspace.mixed.row(0), query_width,
                                context.step.first_position};
    attention(context.threads, context.kernels, queries, context.step.attention, memory, heads);
    workspace.output_input.resize(weights_.output, num_rows);
    for_rows(context.threads, num_rows, query_width,
             [&](int row) { workspace.output_input.set_row(row, workspace.mixed.row(row)); });
    weights_.output.add_to(context.threads, workspace.output_input.view(), num_rows, hidden.row(0), hidden.width());
}

void DecoderLayer::feed_forward(const LayerContext& context, const RowMatrix& hidden) const {
    for (int first = 0; first < context.step.num_rows; first += kMlpBlockRows) {
        feed_forward_block(context, hidden, first, std::min(kMlpBlockRows, context.step.num_rows - first));
    }
}

void DecoderLayer::rotate_and_store(const LayerContext& context, const KVMemory& memory, int row) const {
    const StepRows& step = context.step;
    const HeadShape& heads = shape_.heads;
    const int half = heads.head_dim / 2;
    const float* cosines = step.rotary.cosines + step.positions[row] * half;
    const float* sines = step.rotary.sines + step.positions[row] * half;
    float* projected = context.workspace.query_key_value.row(row);
    for (int head = 0; head < heads.num_heads + heads.num_kv_heads; ++head) {
        context.kernels.rotate(projected + static_cast<std::int64_t>(head) * heads.head_dim, cosines, sines, half);
    }
    const float* keys = projected + static_cast<std::int64_t>(heads.num_heads) * heads.head_dim;
    const std::int64_t first_head = step.slots[row] * heads.num_kv_heads;
    const auto store = [&](const float* source, const StoredHeads& stored) {
        store_heads(context.kernels, source, heads.num_kv_heads, heads.head_dim, memory.type, stored, first_head);
    };
    store(keys, memory.keys);
    store(keys + static_cast<std::int64_t>(heads.num_kv_heads) * heads.head_dim, memory.values);
}

void DecoderLayer::feed_forward_block(const LayerContext& context, const RowMatrix& hidden, int first_row,
                                      int num_rows) const {
    LayerWorkspace& workspace = context.workspace;
    const int width = shape_.hidden_size, intermediate = shape_.intermediate_size;
    workspace.mlp_input.resize(weights_.gate_up, num_rows);
    for_rows(context.threads, num_rows, width, [&](int row) {
        float* normalised = row_of_this_thread(width);
        context.kernels.rms_norm(hidden.row(first_row + row), weights_.post_attention_norm.data(),
                                 shape_.rms_norm_epsilon, width, normalised);
        workspace.mlp_input.set_row(row, normalised);
    });
    RowMatrix& gate_up = workspace.gate_up;
    gate_up.resize(num_rows, 2 * intermediate);
    weights_.gate_up.apply(context.threads, workspace.mlp_input.view(), num_rows, gate_up.row(0), 2 * intermediate);
    workspace.down_input.resize(weights_.down, num_rows);
    for_rows(context.threads, num_rows, 2 * intermediate, [&](int row) {
        float* gate = gate_up.row(row);
        context.kernels.silu_multiply(gate, gate + intermediate, intermediate, gate);
        workspace.down_input.set_row(row, gate);
    });
    weights_.down.add_to(context.threads, workspace.down_input.view(), num_rows, hidden.row(first_row), hidden.width());
}

void normalise_rows(const LayerContext& context, const RowMatrix& hidden, const std::vector<float>& weight,
                    float epsilon, const LinearStack& stack, StackInput& input) {
    const int width = hidden.width();
    input.resize(stack, context.step.num_rows);
    for_rows(context.threads, context.step.num_rows, width, [&](int row) {
        if (weight.empty()) return input.set_row(row, hidden.row(row));
        float* normalised = row_of_this_thread(width);
        context.kernels.rms_norm(hidden.row(row), weight.data(), epsilon, width, normalised);
        input.set_row(row, normalised);
    });
}

}  // namespace aquiline
