// Logit rules, drawing and the walk through the trees, for Python.

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
#include "draft_children.h"
#include "logit_rules.h"
#include "memory_address.h"
#include "token_drawer.h"
#include "token_mask.h"
#include "tree_walk.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace aquiline {
namespace {

// A vocabulary-wide table as Python names it.
struct TableAddress {
    Address rows;
    Address slots;
    std::int64_t num_slots;
};

TableAddress request_table(Address rows, Address slots, std::int64_t num_slots) { return {rows, slots, num_slots}; }

template <class Number>
RequestTable<Number> table_at(const TableAddress& table) {
    return {pointer<const Number>(table.rows), pointer<const std::int64_t>(table.slots), table.num_slots};
}

SamplingRequests sampling_requests(int num_requests, std::int64_t vocab_size, Address seeds, Address sample_indices,
                                   Address prompt_lengths) {
    SamplingRequests requests;
    requests.rules.num_requests = num_requests;
    requests.rules.vocab_size = vocab_size;
    requests.noise = {pointer<const std::int64_t>(seeds), pointer<const std::int64_t>(sample_indices),
                      pointer<const std::int64_t>(prompt_lengths)};
    return requests;
}

void set_bias(SamplingRequests& requests, const TableAddress& bias) {
    requests.rules.bias = table_at<float>(bias);
    check_rules(requests.rules);
}

void set_min_tokens(SamplingRequests& requests, const TableAddress& stop_ids, Address min_tokens) {
    requests.rules.stop_ids = table_at<std::uint8_t>(stop_ids);
    requests.rules.min_tokens = pointer<const std::int64_t>(min_tokens);
    check_rules(requests.rules);
}

void set_penalties(SamplingRequests& requests, const TableAddress& counts, const TableAddress& prompt_seen,
                   Address repetition, Address presence, Address frequency) {
    requests.rules.output_counts = table_at<float>(counts);
    requests.rules.prompt_seen = table_at<std::uint8_t>(prompt_seen);
    requests.rules.repetition = pointer<const float>(repetition);
    requests.rules.presence = pointer<const float>(presence);
    requests.rules.frequency = pointer<const float>(frequency);
    check_rules(requests.rules);
}

void set_filters(SamplingRequests& requests, Address temperatures, Address top_k, Address top_p, Address log_min_p) {
    requests.rules.temperatures = pointer<const float>(temperatures);
    requests.rules.top_k = pointer<const std::int64_t>(top_k);
    requests.rules.top_p = pointer<const double>(top_p);
    requests.rules.log_min_p = pointer<const float>(log_min_p);
}

// Where the rows of a step belong; [num_rows] int64 each, path_tokens [num_rows, path_capacity] or null.
struct RowArrays {
    int num_rows;
    const std::int64_t* row_to_request;
    const std::int64_t* positions;
    const std::int64_t* output_lengths;
    const std::int64_t* path_tokens;
    int path_capacity;
    std::int64_t num_masks = 0;
    const std::uint32_t* masks = nullptr;     // [num_masks, mask_words(vocab_size)]
    const std::int64_t* mask_rows = nullptr;  // [num_rows], -1: none
};

RowArrays row_arrays(int num_rows, Address row_to_request, Address positions, Address output_lengths,
                     Address path_tokens, int path_capacity) {
    return {num_rows,
            pointer<const std::int64_t>(row_to_request),
            pointer<const std::int64_t>(positions),
            pointer<const std::int64_t>(output_lengths),
            pointer<const std::int64_t>(path_tokens),
            path_capacity};
}

void set_masks(RowArrays& rows, Address masks, std::int64_t num_masks, Address mask_rows) {
    rows.masks = pointer<const std::uint32_t>(masks);
    rows.num_masks = num_masks;
    rows.mask_rows = pointer<const std::int64_t>(mask_rows);
    for (std::int64_t row = 0; row < rows.num_rows; ++row) {
        if (rows.mask_rows[row] >= num_masks) {
            throw std::out_of_range("a row has mask " + std::to_string(rows.mask_rows[row]) + " of " +
                                    std::to_string(num_masks));
        }
    }
}

std::vector<LogitRow> logit_rows(const RowArrays& arrays, const SamplingRequests& requests) {
    std::vector<LogitRow> rows(static_cast<std::size_t>(arrays.num_rows));
    for (std::int64_t index = 0; index < arrays.num_rows; ++index) {
        LogitRow& row = rows[static_cast<std::size_t>(index)];
        const std::int64_t request = arrays.row_to_request[index];
        if (request < 0 || request >= requests.rules.num_requests) {
            throw std::out_of_range("a row belongs to request " + std::to_string(request) + " of " +
                                    std::to_string(requests.rules.num_requests));
        }
        row.request = static_cast<int>(request);
        row.output_length = arrays.output_lengths[index];
        row.path_tokens = arrays.path_tokens == nullptr ? nullptr : arrays.path_tokens + index * arrays.path_capacity;
        row.path_len = arrays.path_tokens == nullptr ? 0 : arrays.path_capacity;
        row.key = request_key(requests.noise, row.request, arrays.positions[index], NoiseStream::target);
        if (arrays.mask_rows != nullptr && arrays.mask_rows[index] >= 0) {
            row.mask = arrays.masks + arrays.mask_rows[index] * mask_words(requests.rules.vocab_size);
        }
    }
    return rows;
}

// The trees of a step as Python names them, and the row of each node: [num_requests, num_nodes], -1 for absent ones.
struct TreeArrays {
    WalkedTrees trees;
    const std::int64_t* node_rows;
};

TreeArrays tree_arrays(int num_requests, int num_nodes, int max_depth, Address node_rows, Address tokens,
                       Address parents) {
    return {{num_requests, num_nodes, max_depth, pointer<const std::int64_t>(tokens), pointer<const std::int64_t>(parents)},
            pointer<const std::int64_t>(node_rows)};
}

PathArrays path_arrays(Address nodes, Address num_accepted, Address bonus, Address token_ids, Address drawn) {
    return {pointer<std::int64_t>(nodes), pointer<std::int64_t>(num_accepted), pointer<std::int64_t>(bonus),
            pointer<std::int64_t>(token_ids), pointer<std::int64_t>(drawn)};
}

LogitMatrix matrix_of(Address logits, const SamplingRequests& requests) {
    return {pointer<const float>(logits), requests.rules.vocab_size, requests.rules.vocab_size};
}

void draw_rows(TokenDrawer& drawer, const SamplingRequests& requests, Address logits, const RowArrays& rows,
               Address ids) {
    drawer.draw(matrix_of(logits, requests), logit_rows(rows, requests), requests.rules, pointer<std::int64_t>(ids));
}

void accept(TokenDrawer& drawer, const SamplingRequests& requests, Address logits, const RowArrays& rows,
            const TreeArrays& trees, const PathArrays& paths) {
    const std::int64_t num_nodes = static_cast<std::int64_t>(trees.trees.num_requests) * trees.trees.num_nodes;
    if (std::any_of(trees.node_rows, trees.node_rows + num_nodes, [&](std::int64_t row) { return row >= rows.num_rows; })) {
        throw std::out_of_range("a node belongs to a row that does not exist; there are " + std::to_string(rows.num_rows));
    }
    std::vector<std::int64_t> ids(static_cast<std::size_t>(rows.num_rows));
    drawer.draw(matrix_of(logits, requests), logit_rows(rows, requests), requests.rules, ids.data());
    for (std::int64_t node = 0; node < num_nodes; ++node) {
        const std::int64_t row = trees.node_rows[node];
        paths.drawn[node] = row < 0 ? -1 : ids[static_cast<std::size_t>(row)];
    }
    walk_trees(trees.trees, paths);
}

// What single nodes may have as children, for tests and for growing level by level.
struct ChildArrays {
    int width;
    std::int64_t* columns;
    float* log_confidence;
};

ChildArrays child_arrays(int width, Address columns, Address log_confidence) {
    return {width, pointer<std::int64_t>(columns), pointer<float>(log_confidence)};
}

void propose(ThreadPool& threads, const SamplingRequests& requests, Address draft_logits, const RowArrays& rows,
             Address column_ids, int num_columns, const ChildArrays& children) {
    best_children(threads, kernels_for(detected_level()), pointer<const float>(draft_logits), num_columns, num_columns,
                  logit_rows(rows, requests), requests.rules, pointer<const std::int64_t>(column_ids), children.width,
                  children.columns, children.log_confidence);
}

std::vector<std::uint32_t> key_words(std::int64_t seed, std::int64_t sample_index, std::int64_t position,
                                     std::uint32_t stream) {
    const NoiseKey key = mix_key(seed, sample_index, position, static_cast<NoiseStream>(stream));
    return {key.first, key.second};
}

}  // namespace

void bind_sampling(nb::module_& module) {
    nb::class_<TableAddress>(module, "RequestTable");
    module.def("request_table", request_table, "rows"_a, "slots"_a, "num_slots"_a);
    nb::class_<SamplingRequests>(module, "SamplingRequests")
        .def("set_bias", set_bias, "bias"_a)
        .def("set_min_tokens", set_min_tokens, "stop_ids"_a, "min_tokens"_a)
        .def("set_penalties", set_penalties, "output_counts"_a, "prompt_seen"_a, "repetition"_a, "presence"_a,
             "frequency"_a)
        .def("set_filters", set_filters, "temperatures"_a, "top_k"_a, "top_p"_a, "log_min_p"_a);
    module.def("sampling_requests", sampling_requests, "num_requests"_a, "vocab_size"_a, "seeds"_a, "sample_indices"_a,
               "prompt_lengths"_a);
    nb::class_<RowArrays>(module, "LogitRowArrays")
        .def("set_masks", set_masks, "masks"_a, "num_masks"_a, "mask_rows"_a);
    module.def("logit_row_arrays", row_arrays, "num_rows"_a, "row_to_request"_a, "positions"_a, "output_lengths"_a,
               "path_tokens"_a, "path_capacity"_a);
    nb::class_<TreeArrays>(module, "TreeArrays");
    module.def("tree_arrays", tree_arrays, "num_requests"_a, "num_nodes"_a, "max_depth"_a, "node_rows"_a, "tokens"_a,
               "parents"_a);
    nb::class_<PathArrays>(module, "PathArrays");
    module.def("path_arrays", path_arrays, "nodes"_a, "num_accepted"_a, "bonus"_a, "token_ids"_a, "drawn"_a);
    nb::class_<ChildArrays>(module, "ChildArrays");
    module.def("child_arrays", child_arrays, "width"_a, "columns"_a, "log_confidence"_a);
    nb::class_<TokenDrawer>(module, "TokenDrawer")
        .def(nb::init<std::shared_ptr<ThreadPool>>(), "threads"_a)
        .def("draw", draw_rows, "requests"_a, "logits"_a, "rows"_a, "ids"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("accept", accept, "requests"_a, "logits"_a, "rows"_a, "trees"_a, "paths"_a,
             nb::call_guard<nb::gil_scoped_release>());
    module.def("best_children", propose, "threads"_a, "requests"_a, "draft_logits"_a, "rows"_a, "column_ids"_a,
               "num_columns"_a, "children"_a, nb::call_guard<nb::gil_scoped_release>());
    module.def("noise_key", key_words, "seed"_a, "sample_index"_a, "position"_a, "stream"_a);
}

}  // namespace aquiline
