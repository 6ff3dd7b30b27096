#include "attention_kernel.h"
#include "kernel_table.h"
#include "logit_lanes.h"
#include "row_kernels.h"
#include "sampling_kernels.h"

namespace aquiline {

const KernelTable portable_kernels = {
    rms_norm,      rotate, silu_multiply, exponentials,       round_to_bfloat16, widen_bfloat16,
    quantize_head, attend, merge_partial, largest, noise_bits,        gumbel_noise,
    logit_kernels,
};

}  // namespace aquiline
