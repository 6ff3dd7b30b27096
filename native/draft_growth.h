// Bring the draft cache up to date and grow a whole tree for every request of a step, in one call.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dynamic_growth.h"
#include "growth_run.h"
#include "static_tree.h"

namespace aquiline {

class DraftGrowth {
public:
    // Throws std::invalid_argument unless the head reads the draft's states and target_ids has an id for each output.
    DraftGrowth(std::shared_ptr<ThreadPool> threads, std::shared_ptr<DraftForward> forward,
                std::shared_ptr<const PackedLinear> head, std::vector<std::int64_t> target_ids,
                bool feeds_head_inputs);

    int feature_size() const { return parts_.forward->feature_size(); }

    // tokens: [num_trees, num_nodes], target ids, node 0 the root. Children of every node are the draft's best under
    // the keyed rule, as many as the shape gives it; nodes deeper than any request of the step may have stay 0. Node n
    // uses scratch place n - 1. Calls from several threads take turns.
    //
    // Throws std::out_of_range for a block, slot, position or token that does not exist, or as GrowthRun does.
    void run_static(const DraftPlaces& places, const DraftBatch& batch, const SamplingRequests& sampling,
                    const StaticTree& tree, std::int64_t* tokens);

    // The same for trees that the draft's confidence shapes. Without a least survival they grow to full depth whatever the
    // requests' limits are.
    GrownSizes run_dynamic(const DraftPlaces& places, const DraftBatch& batch, const SamplingRequests& sampling,
                           const DynamicShape& shape, const NodeArrays& out);

private:
    DraftParts parts_;
    std::mutex run_mutex_;
};

}  // namespace aquiline
