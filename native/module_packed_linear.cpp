// Packed linear layers for Python. Memory comes as addresses, which the Python side has checked: an ndarray argument
// costs more than a small layer.

#include <cstdint>
#include <memory>

#include "bindings.h"
#include "memory_address.h"
#include "packed_linear.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace aquiline {
namespace {

enum class ElementType { float32, bfloat16 };

PackedLinear pack_matrix(ThreadPool& threads, Address weights, ElementType type, int out_features, int in_features,
                         WeightFormat format, WeightMemory* memory) {
    nb::gil_scoped_release release;
    const bool is_bfloat16 = type == ElementType::bfloat16;
    return PackedLinear::from_matrix(threads, {pointer<const void>(weights), is_bfloat16, out_features, in_features},
                                     format, memory);
}

PackedLinear pack_gguf(ThreadPool& threads, Address blocks, int out_features, int in_features, WeightFormat format,
                       WeightMemory* memory) {
    nb::gil_scoped_release release;
    return PackedLinear::from_gguf(threads, {pointer<const std::uint8_t>(blocks), out_features, in_features}, format,
                                   memory);
}

// Rows in any form, and the memory they are quantised or rounded into.
class InputRows {
public:
    InputRows(const PackedLinear& linear, int max_rows)
        : buffer_(linear.activation_kind(), max_rows, linear.in_features()) {}

    void fill(Address rows, ElementType type, int num_rows) {
        if (num_rows < 0 || num_rows > buffer_.max_rows()) throw nb::value_error("more rows than there is room for");
        const std::int64_t stride = buffer_.in_features();
        if (type == ElementType::float32) {
            fill_activations(buffer_, pointer<const float>(rows), stride, num_rows);
        } else {
            fill_activations(buffer_, pointer<const std::uint16_t>(rows), stride, num_rows);
        }
        num_rows_ = num_rows;
    }

    int num_rows() const { return num_rows_; }
    const ActivationBuffer& buffer() const { return buffer_; }

private:
    ActivationBuffer buffer_;
    int num_rows_ = 0;
};

void check_fits(const PackedLinear& linear, const InputRows& rows) {
    if (rows.buffer().kind() != linear.activation_kind() || rows.buffer().in_features() != linear.in_features()) {
        throw nb::value_error("the rows were prepared for a layer of another size or format");
    }
}

void apply(const PackedLinear& linear, ThreadPool& threads, const InputRows& rows, Address out, ElementType type,
           std::int64_t out_stride) {
    check_fits(linear, rows);
    const Activations activations = rows.buffer().view();
    if (type == ElementType::float32) {
        linear.apply(threads, activations, rows.num_rows(), pointer<float>(out), out_stride);
    } else {
        linear.apply_bfloat16(threads, activations, rows.num_rows(), pointer<std::uint16_t>(out), out_stride);
    }
}

void add_to(const PackedLinear& linear, ThreadPool& threads, const InputRows& rows, Address out,
            std::int64_t out_stride) {
    check_fits(linear, rows);
    linear.add_to(threads, rows.buffer().view(), rows.num_rows(), pointer<float>(out), out_stride);
}

void unpack(const PackedLinear& linear, Address weights) {
    float* row = pointer<float>(weights);
    for (int output = 0; output < linear.out_features(); ++output, row += linear.in_features()) {
        linear.unpack_row(output, row);
    }
}

}  // namespace

void bind_packed_linear(nb::module_& module) {
    nb::enum_<WeightFormat>(module, "WeightFormat")
        .value("bf16", WeightFormat::bf16)
        .value("q8_0", WeightFormat::q8_0)
        .value("q4_0", WeightFormat::q4_0)
        .value("q4_1", WeightFormat::q4_1);
    nb::enum_<ElementType>(module, "ElementType")
        .value("float32", ElementType::float32)
        .value("bfloat16", ElementType::bfloat16);

    nb::class_<WeightMemory>(module, "WeightMemory").def(nb::init<>());
    nb::class_<PackedLinear>(module, "PackedLinear")
        .def_static("pack_matrix", pack_matrix, "threads"_a, "weights"_a, "type"_a, "out_features"_a, "in_features"_a,
                    "format"_a, "memory"_a.none())
        .def_static("pack_gguf", pack_gguf, "threads"_a, "blocks"_a, "out_features"_a, "in_features"_a, "format"_a,
                    "memory"_a.none())
        .def("set_bias", [](PackedLinear& self, Address bias) { self.set_bias(pointer<const float>(bias)); }, "bias"_a)
        .def_prop_ro("num_bytes", &PackedLinear::num_bytes)
        .def("apply", apply, "threads"_a, "rows"_a, "out"_a, "type"_a, "out_stride"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def("add_to", add_to, "threads"_a, "rows"_a, "out"_a, "out_stride"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def("unpack", unpack, "weights"_a);

    nb::class_<InputRows>(module, "InputRows")
        .def(nb::init<const PackedLinear&, int>(), "linear"_a, "max_rows"_a)
        .def_prop_ro("num_rows", &InputRows::num_rows)
        .def("fill", &InputRows::fill, "rows"_a, "type"_a, "num_rows"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace aquiline
