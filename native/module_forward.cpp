// Whole forwards of target and draft for Python. Memory comes as addresses, which the Python side has checked.

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings.h"
#include "draft_forward.h"
#include "eagle1_forward.h"
#include "eagle_forward.h"
#include "llama_forward.h"
#include "memory_address.h"
#include "model_memory.h"
#include "row_builder.h"
#include "step_rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace aquiline {
namespace {

std::vector<float> copy_of(Address numbers, int size) {
    const float* first = pointer<const float>(numbers);
    return {first, first + size};
}

LayerShape layer_shape(int num_heads, int num_kv_heads, int head_dim, int hidden_size, int intermediate_size,
                       float rms_norm_epsilon) {
    return {{num_heads, num_kv_heads, head_dim}, hidden_size, intermediate_size, rms_norm_epsilon};
}

LayerWeights layer_weights(const LinearStack& query_key_value, const LinearStack& output, const LinearStack& gate_up,
                           const LinearStack& down, Address input_norm, Address post_attention_norm) {
    const int width = output.out_features();
    return {query_key_value, output, gate_up, down, copy_of(input_norm, input_norm == 0 ? 0 : width),
            copy_of(post_attention_norm, width)};
}

EmbeddingTable plain_embedding(Address rows, bool is_bfloat16, std::int64_t num_tokens, int width) {
    EmbeddingTable table;
    table.rows = pointer<const void>(rows);
    table.is_bfloat16 = is_bfloat16;
    table.num_tokens = num_tokens;
    table.width = width;
    return table;
}

EmbeddingTable packed_embedding(std::shared_ptr<const PackedLinear> packed) {
    EmbeddingTable table;
    table.num_tokens = packed->out_features();
    table.width = packed->in_features();
    table.packed = std::move(packed);
    return table;
}

void add_layer(ModelMemory& memory, Address keys, Address values, Address key_scales, Address value_scales) {
    memory.add_layer({pointer<void>(keys), pointer<float>(key_scales)},
                     {pointer<void>(values), pointer<float>(value_scales)});
}

StepRows step_rows(int num_rows, Address positions, Address slots, const RotaryTable& rotary,
                   const ModelMemory& memory, const std::vector<AttentionGroupArrays>& groups, int first_position) {
    StepRows step;
    step.num_rows = num_rows;
    step.positions = pointer<const std::int64_t>(positions);
    step.slots = pointer<const std::int64_t>(slots);
    step.num_slots = memory.num_slots();
    step.rotary = rotary;
    step.first_position = first_position;
    check_places(step);
    step.attention = spread_groups(groups, num_rows, first_position, memory.num_slots());
    return step;
}

void add_tree(RowBuilder& self, const std::vector<std::int64_t>& block_ids, std::int64_t root_slot,
              std::int64_t first_scratch_slot, int num_nodes, Address tokens, Address parents, Address depths) {
    const TreeArrays tree{num_nodes, pointer<const std::int64_t>(tokens), pointer<const std::int64_t>(parents),
                          pointer<const std::int64_t>(depths)};
    self.add_tree(block_ids, root_slot, first_scratch_slot, tree);
}

void run_built_llama(LlamaForward& self, const RowBuilder& rows, const RotaryTable& rotary, const ModelMemory& memory,
                     Address hidden_states, Address features, bool features_are_bfloat16) {
    self.run(rows.token_ids(), rows.rows(rotary, memory.num_slots()), memory.layers(), pointer<float>(hidden_states),
             {pointer<void>(features), features_are_bfloat16});
}

std::unique_ptr<LlamaForward> new_llama(std::shared_ptr<ThreadPool> threads, const LayerShape& shape,
                                        const EmbeddingTable& embedding, std::vector<LayerWeights> layers,
                                        Address final_norm, std::vector<int> aux_layer_ids) {
    return std::make_unique<LlamaForward>(std::move(threads), shape, embedding, std::move(layers),
                                          copy_of(final_norm, shape.hidden_size), std::move(aux_layer_ids));
}

void run_llama(LlamaForward& self, Address token_ids, const StepRows& step, const ModelMemory& memory,
               Address hidden_states, Address features, bool features_are_bfloat16) {
    self.run(pointer<const std::int64_t>(token_ids), step, memory.layers(), pointer<float>(hidden_states),
             {pointer<void>(features), features_are_bfloat16});
}

std::unique_ptr<EagleForward> new_eagle(std::shared_ptr<ThreadPool> threads, const LayerShape& shape,
                                        const EmbeddingTable& embedding, EagleWeights weights) {
    return std::make_unique<EagleForward>(std::move(threads), shape, embedding, std::move(weights));
}

std::unique_ptr<Eagle1Forward> new_eagle1(std::shared_ptr<ThreadPool> threads, const LayerShape& shape,
                                          const EmbeddingTable& embedding, const LinearStack& combine,
                                          std::vector<LayerWeights> layers) {
    return std::make_unique<Eagle1Forward>(std::move(threads), shape, embedding, combine, std::move(layers));
}

EagleWeights eagle_weights(const LinearStack& combine, const std::vector<Address>& feature_norms,
                           std::vector<LayerWeights> layers, Address hidden_norm, Address final_norm,
                           bool norm_before_residual) {
    EagleWeights weights;
    const int num_norms = static_cast<int>(feature_norms.size());
    for (const Address norm : feature_norms) {
        weights.feature_norms.push_back(copy_of(norm, combine.in_features() / num_norms));
    }
    weights.combine = combine;
    weights.layers = std::move(layers);
    weights.hidden_norm = copy_of(hidden_norm, combine.out_features());
    weights.final_norm = copy_of(final_norm, combine.out_features());
    weights.norm_before_residual = norm_before_residual;
    return weights;
}

void run_draft(DraftForward& self, Address token_ids, Address hidden_states, const StepRows& step,
               const ModelMemory& memory, Address head_inputs, Address next_hidden_states) {
    self.run(pointer<const std::int64_t>(token_ids), pointer<const float>(hidden_states), step, memory.layers(),
             pointer<float>(head_inputs), pointer<float>(next_hidden_states));
}

void combine_features(DraftForward& self, Address features, bool is_bfloat16, int num_rows, Address combined) {
    self.combine_features(pointer<const void>(features), is_bfloat16, num_rows, pointer<float>(combined));
}

void bind_weights(nb::module_& module) {
    nb::class_<LinearStack>(module, "LinearStack")
        .def(nb::init<std::vector<std::shared_ptr<const PackedLinear>>>(), "parts"_a)
        .def_prop_ro("in_features", &LinearStack::in_features)
        .def_prop_ro("out_features", &LinearStack::out_features);
    nb::class_<LayerShape>(module, "LayerShape");
    module.def("layer_shape", layer_shape, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "hidden_size"_a,
               "intermediate_size"_a, "rms_norm_epsilon"_a);
    nb::class_<LayerWeights>(module, "LayerWeights");
    module.def("layer_weights", layer_weights, "query_key_value"_a, "output"_a, "gate_up"_a, "down"_a, "input_norm"_a,
               "post_attention_norm"_a);
    nb::class_<EmbeddingTable>(module, "EmbeddingTable");
    module.def("plain_embedding", plain_embedding, "rows"_a, "is_bfloat16"_a, "num_tokens"_a, "width"_a);
    module.def("packed_embedding", packed_embedding, "packed"_a);
    nb::class_<EagleWeights>(module, "EagleWeights");
    module.def("eagle_weights", eagle_weights, "combine"_a, "feature_norms"_a, "layers"_a, "hidden_norm"_a,
               "final_norm"_a, "norm_before_residual"_a);
}

void bind_step(nb::module_& module) {
    nb::class_<RotaryTable>(module, "RotaryTable");
    module.def("rotary_table", [](Address cosines, Address sines, std::int64_t num_positions) {
        return RotaryTable{pointer<const float>(cosines), pointer<const float>(sines), num_positions};
    }, "cosines"_a, "sines"_a, "num_positions"_a);
    nb::enum_<KVType>(module, "KVType")
        .value("float32", KVType::float32)
        .value("bfloat16", KVType::bfloat16)
        .value("int8", KVType::int8);
    nb::class_<ModelMemory>(module, "ModelMemory")
        .def(nb::init<KVType, std::int64_t, int, int>(), "type"_a, "num_slots"_a, "num_kv_heads"_a, "head_dim"_a)
        .def("add_layer", add_layer, "keys"_a, "values"_a, "key_scales"_a, "value_scales"_a)
        .def("move_rows", &ModelMemory::move_rows, "sources"_a, "targets"_a)
        .def_prop_ro("num_slots", &ModelMemory::num_slots);
    nb::class_<RowBuilder>(module, "RowBuilder")
        .def(nb::init<int, int>(), "block_size"_a, "first_position"_a)
        .def("add_run", &RowBuilder::add_run, "block_ids"_a, "first_slot"_a, "token_ids"_a)
        .def("add_tree", add_tree, "block_ids"_a, "root_slot"_a, "first_scratch_slot"_a, "num_nodes"_a, "tokens"_a,
             "parents"_a, "depths"_a)
        .def_prop_ro("num_rows", &RowBuilder::num_rows)
        .def_prop_ro("max_position", &RowBuilder::max_position);
    nb::class_<StepRows>(module, "StepRows");
    module.def("step_rows", step_rows, "num_rows"_a, "positions"_a, "slots"_a, "rotary"_a, "memory"_a, "groups"_a,
               "first_position"_a);
}

}  // namespace

void bind_forward(nb::module_& module) {
    bind_weights(module);
    bind_step(module);
    nb::class_<LlamaForward>(module, "LlamaForward")
        .def(nb::new_(&new_llama), "threads"_a, "shape"_a, "embedding"_a, "layers"_a, "final_norm"_a, "aux_layer_ids"_a)
        .def("run", run_llama, "token_ids"_a, "step"_a, "memory"_a, "hidden_states"_a, "features"_a,
             "features_are_bfloat16"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("run_built", run_built_llama, "rows"_a, "rotary"_a, "memory"_a, "hidden_states"_a, "features"_a,
             "features_are_bfloat16"_a, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<DraftForward>(module, "DraftForward")
        .def_prop_ro("feature_size", &DraftForward::feature_size)
        .def("combine_features", combine_features, "features"_a, "is_bfloat16"_a, "num_rows"_a, "combined"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def("run", run_draft, "token_ids"_a, "hidden_states"_a, "step"_a, "memory"_a, "head_inputs"_a,
             "next_hidden_states"_a, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<EagleForward, DraftForward>(module, "EagleForward")
        .def(nb::new_(&new_eagle), "threads"_a, "shape"_a, "embedding"_a, "weights"_a);
    nb::class_<Eagle1Forward, DraftForward>(module, "Eagle1Forward")
        .def(nb::new_(&new_eagle1), "threads"_a, "shape"_a, "embedding"_a, "combine"_a, "layers"_a);
}

}  // namespace aquiline
