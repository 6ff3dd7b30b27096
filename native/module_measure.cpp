// The machine's speed, and single layers of a model, for the programs that measure.

#include <cstdint>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "llama_forward.h"
#include "machine_speed.h"
#include "memory_address.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace aquiline {
namespace {

enum class LayerPart { query_key_value, output, gate_up, down };

// Rows in both forms that packed weights are multiplied with, so that any stack of their width reads them.
class StackRows {
public:
    StackRows(int in_features, int num_rows)
        : in_features_(in_features),
          num_rows_(num_rows),
          bfloat16_(ActivationKind::bfloat16, num_rows, in_features),
          quantized_(ActivationKind::quantized, num_rows, in_features) {}

    int in_features() const { return in_features_; }
    int num_rows() const { return num_rows_; }
    void fill(Address rows) {
        fill_activations(bfloat16_, pointer<const float>(rows), in_features_, num_rows_);
        fill_activations(quantized_, pointer<const float>(rows), in_features_, num_rows_);
    }
    Activations view() const { return {bfloat16_.view().bfloat16, quantized_.view().quantized}; }

private:
    int in_features_;
    int num_rows_;
    ActivationBuffer bfloat16_;
    ActivationBuffer quantized_;
};

LinearStack layer_part(const LlamaForward& model, int layer, LayerPart part) {
    if (layer < 0 || layer >= model.num_layers()) {
        throw std::out_of_range("there is no layer " + std::to_string(layer));
    }
    const LayerWeights& weights = model.layer(layer).weights();
    switch (part) {
        case LayerPart::query_key_value: return weights.query_key_value;
        case LayerPart::output: return weights.output;
        case LayerPart::gate_up: return weights.gate_up;
        case LayerPart::down: return weights.down;
    }
    throw std::invalid_argument("there is no such part of a layer");
}

void apply_stack(ThreadPool& threads, const LinearStack& stack, const StackRows& rows, Address out) {
    if (rows.in_features() != stack.in_features()) {
        throw std::invalid_argument("rows and stack must have the same number of inputs");
    }
    stack.apply(threads, rows.view(), rows.num_rows(), pointer<float>(out), stack.out_features());
}

}  // namespace

void bind_measure(nb::module_& module) {
    nb::class_<MemoryBuffer>(module, "MemoryBuffer")
        .def(nb::init<std::int64_t>(), "num_bytes"_a)
        .def("fill", &MemoryBuffer::fill, "word"_a)
        .def("read", &MemoryBuffer::read, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
    nb::enum_<ProductKind>(module, "ProductKind")
        .value("float32", ProductKind::float32)
        .value("bfloat16", ProductKind::bfloat16)
        .value("int8", ProductKind::int8);
    module.def("multiply_and_add", multiply_and_add, "threads"_a, "kind"_a, "num_rounds"_a,
               nb::call_guard<nb::gil_scoped_release>());
    nb::enum_<LayerPart>(module, "LayerPart")
        .value("query_key_value", LayerPart::query_key_value)
        .value("output", LayerPart::output)
        .value("gate_up", LayerPart::gate_up)
        .value("down", LayerPart::down);
    module.def("layer_part", layer_part, "model"_a, "layer"_a, "part"_a);
    module.def("stack_bytes", [](const LinearStack& stack) { return stack.num_bytes(); }, "stack"_a);
    module.def("stack_reads_bfloat16", [](const LinearStack& stack) { return stack.reads(ActivationKind::bfloat16); },
               "stack"_a);
    nb::class_<StackRows>(module, "StackRows")
        .def(nb::init<int, int>(), "in_features"_a, "num_rows"_a)
        .def("fill", &StackRows::fill, "rows"_a);
    module.def("apply_stack", apply_stack, "threads"_a, "stack"_a, "rows"_a, "out"_a,
               nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace aquiline
