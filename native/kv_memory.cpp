#include "kv_memory.h"

#include <algorithm>

#include "kernel_table.h"

namespace aquiline {

void store_heads(const KernelTable& kernels, const float* heads, int count, int head_dim, KVType type,
                 const StoredHeads& stored, std::int64_t first_head) {
    const std::int64_t first_number = first_head * head_dim;
    if (type == KVType::bfloat16) {
        kernels.round_to_bfloat16(heads, count * head_dim, static_cast<std::uint16_t*>(stored.numbers) + first_number);
    } else if (type == KVType::float32) {
        std::copy_n(heads, count * head_dim, static_cast<float*>(stored.numbers) + first_number);
    } else {
        std::int8_t* numbers = static_cast<std::int8_t*>(stored.numbers) + first_number;
        for (int head = 0; head < count; ++head) {
            const std::int64_t start = static_cast<std::int64_t>(head) * head_dim;
            stored.scales[first_head + head] = kernels.quantize_head(heads + start, head_dim, numbers + start);
        }
    }
}

}  // namespace aquiline
