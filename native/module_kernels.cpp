// Single kernels for Python, of the level that the environment allows at the time of the call.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "activations.h"
#include "attention.h"
#include "bindings.h"
#include "kernel_table.h"
#include "memory_address.h"
#include "model_memory.h"
#include "step_rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace aquiline {
namespace {

const KernelTable& kernels() { return kernels_for(detected_level()); }

void rms_norm_rows(Address rows, Address weight, float epsilon, int num_rows, int width, Address out) {
    const KernelTable& table = kernels();
    for (std::int64_t row = 0; row < num_rows; ++row) {
        table.rms_norm(pointer<const float>(rows) + row * width, pointer<const float>(weight), epsilon, width,
                       pointer<float>(out) + row * width);
    }
}

void rotate_heads(Address heads, Address cosines, Address sines, int num_rows, int num_heads, int half) {
    const KernelTable& table = kernels();
    float* head = pointer<float>(heads);
    for (std::int64_t row = 0; row < num_rows; ++row) {
        for (int i = 0; i < num_heads; ++i, head += 2 * half) {
            const std::int64_t angle = row * half;
            table.rotate(head, pointer<const float>(cosines) + angle, pointer<const float>(sines) + angle, half);
        }
    }
}

void silu_multiply(Address gate, Address up, int size, Address out) {
    kernels().silu_multiply(pointer<const float>(gate), pointer<const float>(up), size, pointer<float>(out));
}

void exponentials(Address numbers, int size, Address out) {
    kernels().exponentials(pointer<const float>(numbers), size, pointer<float>(out));
}

AttentionGroupArrays attention_group(std::int64_t num_reqs, std::int64_t num_queries, std::int64_t context,
                                     Address key_slots, Address visible_lens,
                                     std::pair<std::int64_t, std::int64_t> visible_strides) {
    AttentionGroupArrays group;
    group.num_reqs = num_reqs;
    group.num_queries = num_queries;
    group.context = context;
    group.key_slots = pointer<const std::int64_t>(key_slots);
    group.visible_lens = pointer<const std::int64_t>(visible_lens);
    group.visible_strides[0] = visible_strides.first;
    group.visible_strides[1] = visible_strides.second;
    return group;
}

void set_paths(AttentionGroupArrays& group, Address path_slots, std::int64_t path_capacity, Address path_lens,
               std::pair<std::int64_t, std::int64_t> path_strides) {
    group.path_slots = pointer<const std::int64_t>(path_slots);
    group.path_capacity = path_capacity;
    group.path_lens = pointer<const std::int64_t>(path_lens);
    group.path_strides[0] = path_strides.first;
    group.path_strides[1] = path_strides.second;
}

struct AttentionCall {
    HeadShape shape;
    ModelMemory memory;
};

// Attention over the memory of one layer.
AttentionCall attention_call(int num_heads, const ModelMemory& memory) {
    if (memory.layers().size() != 1) throw std::invalid_argument("attention reads the memory of one layer");
    return {{num_heads, memory.num_kv_heads(), memory.head_dim()}, memory};
}

void run_attention(ThreadPool& threads, const AttentionCall& call, Address query, int num_rows,
                   const std::vector<AttentionGroupArrays>& groups, int first_position, Address out) {
    const std::vector<AttentionRow> rows = spread_groups(groups, num_rows, first_position, call.memory.num_slots());
    const std::int64_t width = static_cast<std::int64_t>(call.shape.num_heads) * call.shape.head_dim;
    nb::gil_scoped_release release;
    const AttentionRows queries{pointer<const float>(query), width, pointer<float>(out), width, first_position};
    attention(threads, kernels(), queries, rows, call.memory.layers().front(), call.shape);
}

void quantize_heads(Address heads, int num_heads, int head_dim, Address numbers, Address scales) {
    store_heads(kernels(), pointer<const float>(heads), num_heads, head_dim, KVType::int8,
                {pointer<void>(numbers), pointer<float>(scales)}, 0);
}

// Rows as quantised layers read them: [num_rows, in_features] numbers and [num_rows, in_features / 32] scales.
void quantize_rows(Address rows, int num_rows, int in_features, Address numbers, Address scales) {
    const int num_groups = in_features / kGroupSize;
    ActivationBuffer buffer(ActivationKind::quantized, 1, in_features);
    const QuantizedRows row = buffer.quantized_row(0);
    std::int8_t* number = pointer<std::int8_t>(numbers);
    float* scale = pointer<float>(scales);
    for (std::int64_t index = 0; index < num_rows; ++index) {
        quantize_row_at(detected_level(), pointer<const float>(rows) + index * in_features, in_features, row);
        for (int group = 0; group < num_groups; ++group, number += kGroupSize) {
            const QuantizedRows own = from_group(row, group);
            std::copy_n(own.values, kGroupSize, number);
            *scale++ = *own.scales;
        }
    }
}

NoiseKey noise_key(std::uint32_t first, std::uint32_t second) { return {first, second}; }

void noise_bits(std::int64_t first_id, int count, std::uint32_t first_word, std::uint32_t second_word, Address out) {
    kernels().noise_bits(first_id, count, noise_key(first_word, second_word), pointer<std::uint32_t>(out));
}

void gumbel_noise(std::int64_t first_id, int count, std::uint32_t first_word, std::uint32_t second_word, Address out) {
    kernels().gumbel_noise(first_id, count, noise_key(first_word, second_word), pointer<float>(out));
}

}  // namespace

void bind_kernels(nb::module_& module) {
    module.def("rms_norm", rms_norm_rows, "rows"_a, "weight"_a, "epsilon"_a, "num_rows"_a, "width"_a, "out"_a);
    module.def("rotate", rotate_heads, "heads"_a, "cosines"_a, "sines"_a, "num_rows"_a, "num_heads"_a, "half"_a);
    module.def("silu_multiply", silu_multiply, "gate"_a, "up"_a, "size"_a, "out"_a);
    module.def("exponentials", exponentials, "numbers"_a, "size"_a, "out"_a);
    nb::class_<AttentionGroupArrays>(module, "AttentionGroup").def("set_paths", set_paths);
    module.def("attention_group", attention_group);
    nb::class_<AttentionCall>(module, "AttentionCall");
    module.def("attention_call", attention_call, "num_heads"_a, "memory"_a);
    module.def("quantize_heads", quantize_heads, "heads"_a, "num_heads"_a, "head_dim"_a, "numbers"_a, "scales"_a);
    module.def("quantize_rows", quantize_rows, "rows"_a, "num_rows"_a, "in_features"_a, "numbers"_a, "scales"_a);
    module.def("attention", run_attention, "threads"_a, "call"_a, "query"_a, "num_rows"_a, "groups"_a,
               "first_position"_a, "out"_a);
    module.def("noise_bits", noise_bits, "first_id"_a, "count"_a, "first_word"_a, "second_word"_a, "out"_a);
    module.def("gumbel_noise", gumbel_noise, "first_id"_a, "count"_a, "first_word"_a, "second_word"_a, "out"_a);
}

}  // namespace aquiline
