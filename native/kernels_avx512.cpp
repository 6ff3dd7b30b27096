#include "attention_bfloat16_avx512.h"
#include "attention_kernel.h"
#include "kernel_table.h"
#include "logit_lanes.h"
#include "row_kernels.h"
#include "sampling_kernels.h"

namespace aquiline {
namespace {

void attend_fastest(const AttentionTile& tile) {
    if (can_attend_bfloat16(tile)) return attend_bfloat16_avx512(tile);
    attend(tile);
}

}  // namespace

const KernelTable avx512_kernels = {
    rms_norm,      rotate, silu_multiply, exponentials,       round_to_bfloat16, widen_bfloat16,
    quantize_head, attend_fastest, merge_partial, largest, noise_bits,        gumbel_noise,
    logit_kernels,
};

}  // namespace aquiline
