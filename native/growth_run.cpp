#include "growth_run.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "draft_children.h"

namespace aquiline {

void DraftBatch::add(DraftRequest request) {
    if (request.max_depth > 0) {
        if (static_cast<std::size_t>(num_trees) != requests.size()) {
            throw std::invalid_argument("requests that grow trees must come first");
        }
        ++num_trees;
    }
    requests.push_back(std::move(request));
}

std::int64_t DraftBatch::last_position() const {
    std::int64_t last = 0;
    for (const DraftRequest& request : requests) last = std::max(last, request.root());
    return last;
}

GrowthRun::GrowthRun(DraftParts& parts, const DraftPlaces& places, const DraftBatch& batch,
                     const SamplingRequests& sampling)
    : parts_(parts),
      places_(places),
      batch_(batch),
      sampling_(sampling),
      builder_(places.regions, places.num_slots, places.rotary, batch.requests) {
    std::int64_t num_rows = 0;
    for (const DraftRequest& each : batch.requests) num_rows += static_cast<std::int64_t>(each.token_ids.size());
    if (num_rows != batch.num_features) {
        throw std::out_of_range("there are " + std::to_string(batch.num_features) + " features for " +
                                std::to_string(num_rows) + " new rows");
    }
    if (sampling.rules.num_requests < batch.num_trees) {
        throw std::out_of_range("there are more trees than requests that draw");
    }
}

int GrowthRun::max_depth() const {
    int deepest = 0;
    for (int index = 0; index < num_trees(); ++index) deepest = std::max(deepest, request(index).max_depth);
    return deepest;
}

void GrowthRun::extend() {
    const DraftRows rows = builder_.extend_rows();
    parts_.combined.resize(rows.step.num_rows, parts_.forward->hidden_size());
    parts_.forward->combine_features(batch_.features, batch_.features_are_bfloat16, rows.step.num_rows,
                                     parts_.combined.row(0));
    run(rows, parts_.combined);
    expanded_rows_.clear();
    owners_.clear();
    int end = 0;
    for (int index = 0; index < num_trees(); ++index) {
        end += static_cast<int>(request(index).token_ids.size());
        expanded_rows_.push_back(end - 1);
        owners_.push_back(index);
    }
}

Proposals GrowthRun::propose(int depth, const std::vector<std::int64_t>& path_tokens, int width,
                             bool with_confidence) {
    const int num_rows = static_cast<int>(expanded_rows_.size()), num_columns = parts_.head.out_features();
    if (width > num_columns) throw std::invalid_argument("a node cannot have more children than the draft has tokens");
    const int hidden_size = parts_.forward->hidden_size();
    parts_.head_rows.resize(parts_.head, num_rows);
    for_rows(*parts_.threads, num_rows, hidden_size, [&](int row) {
        parts_.head_rows.set_row(row, parts_.head_inputs.row(expanded_rows_[static_cast<std::size_t>(row)]));
    });
    parts_.logits.resize(num_rows, num_columns);
    parts_.head.apply(*parts_.threads, parts_.head_rows.view(), num_rows, parts_.logits.row(0), num_columns);

    const std::vector<LogitRow> rows = logit_rows(depth, path_tokens);
    Proposals proposals;
    proposals.width = width;
    proposals.token_ids.resize(rows.size() * static_cast<std::size_t>(width));
    if (with_confidence) proposals.log_confidence.resize(proposals.token_ids.size());
    best_children(*parts_.threads, *parts_.kernels, parts_.logits.row(0), num_columns, num_columns, rows,
                  sampling_.rules, parts_.target_ids.data(), width, proposals.token_ids.data(),
                  with_confidence ? proposals.log_confidence.data() : nullptr);
    for (std::int64_t& id : proposals.token_ids) id = parts_.target_ids[static_cast<std::size_t>(id)];
    return proposals;
}

std::vector<LogitRow> GrowthRun::logit_rows(int depth, const std::vector<std::int64_t>& path_tokens) const {
    const RequestNoise& noise = sampling_.noise;
    const MaskRows masks = batch_.masks ? batch_.masks(depth, owners_, path_tokens) : MaskRows{};
    if (!masks.rows.empty() && masks.rows.size() != expanded_rows_.size()) {
        throw std::out_of_range("there are " + std::to_string(masks.rows.size()) + " masks for " +
                                std::to_string(expanded_rows_.size()) + " nodes");
    }
    std::vector<LogitRow> rows;
    rows.reserve(expanded_rows_.size());
    for (std::size_t row = 0; row < expanded_rows_.size(); ++row) {
        const int index = owners_[row];
        const std::int64_t position = request(index).root() + depth + 1;
        const std::int64_t* path = path_tokens.data() + row * static_cast<std::size_t>(depth);
        rows.push_back({index, position - noise.prompt_lengths[index], path, depth,
                        request_key(noise, index, position, NoiseStream::target),
                        masks.of_row(row, sampling_.rules.vocab_size)});
    }
    return rows;
}

void GrowthRun::advance(const LevelNodes& nodes, const std::vector<int>& parents) {
    const int num_rows = static_cast<int>(nodes.token_ids.size()), hidden_size = parts_.forward->hidden_size();
    const RowMatrix& states = parts_.feeds_head_inputs ? parts_.head_inputs : parts_.hidden_states;
    parts_.parent_states.resize(num_rows, hidden_size);
    for (int row = 0; row < num_rows; ++row) {
        const auto parent = static_cast<std::size_t>(parents[static_cast<std::size_t>(row)]);
        const float* state = states.row(expanded_rows_[parent]);
        std::copy_n(state, hidden_size, parts_.parent_states.row(row));
    }
    run(builder_.level_rows(nodes), parts_.parent_states);
    owners_ = nodes.owners;
    expanded_rows_.resize(static_cast<std::size_t>(num_rows));
    for (int row = 0; row < num_rows; ++row) expanded_rows_[static_cast<std::size_t>(row)] = row;
}

void GrowthRun::run(const DraftRows& rows, const RowMatrix& inputs) {
    const int hidden_size = parts_.forward->hidden_size();
    parts_.head_inputs.resize(rows.step.num_rows, hidden_size);
    parts_.hidden_states.resize(rows.step.num_rows, hidden_size);
    parts_.forward->run(rows.token_ids.data(), inputs.row(0), rows.step, places_.memory, parts_.head_inputs.row(0),
                        parts_.hidden_states.row(0));
}

}  // namespace aquiline
