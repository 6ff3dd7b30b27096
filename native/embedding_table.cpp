#include "embedding_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bounds.h"

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
    for (int i = 0; i < count; ++i) check_below(token_ids[i], num_tokens, "token id");
}

}  // namespace aquiline
