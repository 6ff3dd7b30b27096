// Draft growth for Python. Memory comes as addresses, which the Python side has checked.

#include <nanobind/stl/function.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bindings.h"
#include "draft_growth.h"
#include "memory_address.h"
#include "model_memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace aquiline {
namespace {

DraftPlaces draft_places(const SlotRegions& regions, const ModelMemory& memory, const RotaryTable& rotary) {
    return {regions, memory.layers(), memory.num_slots(), rotary};
}

DraftBatch draft_batch(Address features, bool is_bfloat16, std::int64_t num_features) {
    DraftBatch batch;
    batch.features = pointer<const void>(features);
    batch.features_are_bfloat16 = is_bfloat16;
    batch.num_features = num_features;
    return batch;
}

void add_request(DraftBatch& self, std::vector<std::int64_t> block_ids, std::int64_t num_draft_rows,
                 std::vector<std::int64_t> token_ids, std::int64_t row, int max_depth) {
    self.add({std::move(block_ids), num_draft_rows, std::move(token_ids), row, max_depth});
}

using MaskQuestion = std::function<nb::object(int, const std::vector<int>&, const std::vector<std::int64_t>&)>;

void set_masks(DraftBatch& self, MaskQuestion question) {
    self.masks = [ask = std::move(question)](int depth, const std::vector<int>& owners,
                                             const std::vector<std::int64_t>& path_tokens) {
        const nb::gil_scoped_acquire locked;
        const nb::object answer = ask(depth, owners, path_tokens);
        return MaskRows{pointer<const std::uint32_t>(nb::cast<Address>(answer[0])),
                        nb::cast<std::vector<std::int64_t>>(answer[1])};
    };
}

std::unique_ptr<DraftGrowth> new_growth(std::shared_ptr<ThreadPool> threads, std::shared_ptr<DraftForward> forward,
                                        std::shared_ptr<const PackedLinear> head, Address target_ids,
                                        bool feeds_head_inputs) {
    const auto* first = pointer<const std::int64_t>(target_ids);
    std::vector<std::int64_t> ids(first, first + head->out_features());
    return std::make_unique<DraftGrowth>(std::move(threads), std::move(forward), std::move(head), std::move(ids),
                                         feeds_head_inputs);
}

void run_static(DraftGrowth& self, const DraftPlaces& places, const DraftBatch& batch,
                const SamplingRequests& sampling, const StaticTree& tree, Address tokens) {
    self.run_static(places, batch, sampling, tree, pointer<std::int64_t>(tokens));
}

GrownSizes run_dynamic(DraftGrowth& self, const DraftPlaces& places, const DraftBatch& batch,
                       const SamplingRequests& sampling, const DynamicShape& shape, const NodeArrays& out) {
    const nb::gil_scoped_release unlocked;
    return self.run_dynamic(places, batch, sampling, shape, out);
}

}  // namespace

void bind_draft(nb::module_& module) {
    nb::class_<StaticTree>(module, "StaticTree")
        .def(nb::init<std::vector<int>, std::vector<int>>(), "parents"_a, "ranks"_a)
        .def_prop_ro("num_nodes", &StaticTree::num_nodes)
        .def_prop_ro("depth", &StaticTree::depth);
    nb::class_<DynamicShape>(module, "DynamicShape");
    module.def("dynamic_shape", [](int steps, int topk, int num_draft_tokens, double least_survival) {
        return DynamicShape{steps, topk, num_draft_tokens, least_survival};
    }, "steps"_a, "topk"_a, "num_draft_tokens"_a, "least_survival"_a);
    nb::class_<GrownSizes>(module, "GrownSizes")
        .def_ro("row_counts", &GrownSizes::row_counts)
        .def_ro("level_rows", &GrownSizes::level_rows)
        .def_ro("survivals", &GrownSizes::survivals);
    nb::class_<NodeArrays>(module, "NodeArrays");
    module.def("node_arrays", [](Address tokens, Address parents, Address depths, Address is_valid) {
        return NodeArrays{pointer<std::int64_t>(tokens), pointer<std::int64_t>(parents),
                          pointer<std::int64_t>(depths), pointer<bool>(is_valid)};
    }, "tokens"_a, "parents"_a, "depths"_a, "is_valid"_a);
    nb::class_<SlotRegions>(module, "SlotRegions")
        .def("__init__",
             [](SlotRegions* self, std::int64_t num_blocks, std::int64_t block_size, std::int64_t max_num_seqs,
                std::int64_t scratch_per_row) {
                 new (self) SlotRegions{num_blocks, block_size, max_num_seqs, scratch_per_row};
             },
             "num_blocks"_a, "block_size"_a, "max_num_seqs"_a, "scratch_per_row"_a);
    nb::class_<DraftPlaces>(module, "DraftPlaces");
    module.def("draft_places", draft_places, "regions"_a, "memory"_a, "rotary"_a);
    nb::class_<DraftBatch>(module, "DraftBatch")
        .def("add", add_request)
        .def("set_masks", set_masks, "ask"_a)
        .def_ro("num_trees", &DraftBatch::num_trees)
        .def_prop_ro("last_position", &DraftBatch::last_position);
    module.def("draft_batch", draft_batch);
    nb::class_<DraftGrowth>(module, "DraftGrowth")
        .def(nb::new_(&new_growth), "threads"_a, "forward"_a, "head"_a, "target_ids"_a, "feeds_head_inputs"_a)
        .def("run_static", run_static, nb::call_guard<nb::gil_scoped_release>())
        .def("run_dynamic", run_dynamic);
}

}  // namespace aquiline
