// One step of a draft: rows of newly computed tokens first, then a tree level by level.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draft_forward.h"
#include "draft_rows.h"
#include "kernel_table.h"
#include "linear_stack.h"
#include "logit_rules.h"
#include "thread_pool.h"
#include "token_mask.h"
#include "workspace.h"

namespace aquiline {

// What a draft consists of, and memory that it keeps from step to step.
struct DraftParts {
    std::shared_ptr<ThreadPool> threads;
    const KernelTable* kernels = nullptr;
    std::shared_ptr<DraftForward> forward;
    LinearStack head;                         // from states to logits over the draft vocabulary
    std::vector<std::int64_t> target_ids;     // [draft_vocab]
    bool feeds_head_inputs = false;           // the next row continues from what the head reads, not from before its norm

    RowMatrix combined;
    RowMatrix head_inputs;
    RowMatrix hidden_states;
    RowMatrix parent_states;
    RowMatrix logits;
    StackInput head_rows;
};

// Where a draft reads and writes.
struct DraftPlaces {
    SlotRegions regions;
    std::vector<KVMemory> memory;
    std::int64_t num_slots = 0;
    RotaryTable rotary;
};

// The requests of a step. Their features lie one behind the other, request by request.
struct DraftBatch {
    const void* features = nullptr;       // [new rows of all requests, feature_size]
    bool features_are_bfloat16 = true;
    std::int64_t num_features = 0;
    std::vector<DraftRequest> requests;   // those that grow trees come first
    int num_trees = 0;
    MaskSource masks;                     // what grammars allow, asked for the nodes of all trees; none: everything

    // Throws std::invalid_argument for a tree behind a request without one.
    void add(DraftRequest request);

    // Of the roots.
    std::int64_t last_position() const;
};

// The draft's best continuations of every expanded node, best first.
struct Proposals {
    int width = 0;
    std::vector<std::int64_t> token_ids;  // [num_rows, width], of the target
    std::vector<float> log_confidence;    // [num_rows, width]; empty where it was not asked for
};

class GrowthRun {
public:
    // sampling: of the step's drawing requests, tree requests first. Throws std::out_of_range as DraftRowBuilder does,
    // or if there are not as many features as new rows. What is given must outlive the run.
    GrowthRun(DraftParts& parts, const DraftPlaces& places, const DraftBatch& batch, const SamplingRequests& sampling);

    int num_trees() const { return batch_.num_trees; }
    const DraftRequest& request(int index) const { return batch_.requests[static_cast<std::size_t>(index)]; }

    // Depth of the deepest node that any request of the step may have.
    int max_depth() const;

    // Write the draft rows of newly computed tokens; the expanded nodes are the roots from then on.
    void extend();

    // Children of every expanded node, request by request. The child of a node at depth d stands at position
    // root + d + 1, which keys its noise.
    //
    // path_tokens: draft tokens down to each node, [num_nodes, depth].
    Proposals propose(int depth, const std::vector<std::int64_t>& path_tokens, int width, bool with_confidence);

    // Run the draft over nodes one level further down, which are the expanded ones from then on.
    //
    // parents: number of each node's parent among the nodes that were expanded before, [num_nodes].
    void advance(const LevelNodes& nodes, const std::vector<int>& parents);

private:
    std::vector<LogitRow> logit_rows(int depth, const std::vector<std::int64_t>& path_tokens) const;
    void run(const DraftRows& rows, const RowMatrix& inputs);

    DraftParts& parts_;
    const DraftPlaces& places_;
    const DraftBatch& batch_;
    const SamplingRequests& sampling_;
    DraftRowBuilder builder_;
    std::vector<int> expanded_rows_;  // row of each expanded node in the last forward, request by request
    std::vector<int> owners_;         // request of each expanded node
};

}  // namespace aquiline
