// Where the rows of a forward start: one vector for each token.
#pragma once

#include <cstdint>
#include <memory>

#include "kernel_table.h"
#include "packed_linear.h"

namespace aquiline {

// Either a plain table, which the caller keeps alive, or the rows of a packed head, whose weights a tied model shares.
struct EmbeddingTable {
    const void* rows = nullptr;  // [num_tokens, width]
    bool is_bfloat16 = true;     // else float32
    std::int64_t num_tokens = 0;
    int width = 0;
    std::shared_ptr<const PackedLinear> packed;

    void copy_row(const KernelTable& kernels, std::int64_t token_id, float* out) const;

    // Throws std::out_of_range if an id has no row.
    void check_ids(const std::int64_t* token_ids, int count) const;
};

}  // namespace aquiline
