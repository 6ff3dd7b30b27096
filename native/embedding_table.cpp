#include "embedding_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace aquiline {

void EmbeddingTable::copy_row(const KernelTable& kernels, std::int64_t token_id, float* out) const {
    if (packed != nullptr) {
        packed->unpack_row(static_cast<int>(token_id), out);
    } else if (is_bfloat16) {
        kernels.widen_bfloat16(static_cast<const std::uint16_t*>(rows) + token_id * width, width, out);
    } else {
        std::copy_n(static_cast<const float*>(rows) + token_id * width, width, out);
    }
}

void EmbeddingTable::check_ids(const std::int64_t* token_ids, int count) const {
    for (int i = 0; i < count; ++i) {
        if (token_ids[i] < 0 || token_ids[i] >= num_tokens) {
            throw std::out_of_range("token id " + std::to_string(token_ids[i]) + " is not in 0.." +
                                    std::to_string(num_tokens - 1));
        }
    }
}

}  // namespace aquiline
