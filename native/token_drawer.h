// One token for every row of raw logits, after all sampling parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "adjusted_logits.h"
#include "kernel_table.h"
#include "logit_rules.h"
#include "thread_pool.h"
#include "token_filters.h"

namespace aquiline {

// Raw logits of some rows: row i begins at data + i * stride.
struct LogitMatrix {
    const float* data;
    std::int64_t stride;
    std::int64_t num_columns;
};

// Draws tokens; keeps its buffers from step to step.
class TokenDrawer {
public:
    explicit TokenDrawer(std::shared_ptr<ThreadPool> threads);

    // ids[row] = the argmax of log-weight + keyed noise among the tokens that the row's rules leave; without noise and
    // filters where its request is greedy; ties to the lowest id. A row of nothing but NaN gets some id.
    //
    // The result of a row depends on no other row and not on the number of threads. Calls from several threads take
    // turns. Throws std::out_of_range if a row names a request or a path token that does not exist.
    void draw(const LogitMatrix& logits, const std::vector<LogitRow>& rows, const LogitRules& rules, std::int64_t* ids);

private:
    struct RowWork {
        const float* logits = nullptr;
        LogWeightScale scale{0.0f, 0.0f};  // temperature 0: greedy
        NoiseKey key{0, 0};
        RowFilters filters;
        std::int64_t mass = 0;
        AdjustedRow adjusted;
        std::vector<float> block_largest;
        std::vector<Candidate> part_best;
        std::vector<std::int64_t> part_mass;
        ListedColumns columns;

        bool is_greedy() const { return scale.temperature <= 0.0f; }
    };

    void draw_rows(const LogitMatrix& logits, const LogitRow* rows, int num_rows, const LogitRules& rules,
                   std::int64_t* ids);
    void start_row(const LogitMatrix& logits, int index, const LogitRow& row, const LogitRules& rules, RowWork& work);
    void look_at_part(RowWork& work, int part) const;
    void weigh_part(RowWork& work, int part) const;
    std::int64_t finish_row(RowWork& work) const;
    RowPart row_part(const RowWork& work, int part) const;

    std::shared_ptr<ThreadPool> threads_;
    const KernelTable& kernels_;
    std::mutex mutex_;
    std::vector<RowWork> work_;
    int num_columns_ = 0;
    int num_parts_ = 0;
};

}  // namespace aquiline
