// The kernels of one instruction set.
//
// kernels_portable.cpp, kernels_avx2.cpp and kernels_avx512.cpp compile the same code with different flags. The
// portable one has no fused multiply-add, so it differs from the others in the last places.
#pragma once

#include <cstdint>

#include "cpu_features.h"
#include "logit_kernels.h"

namespace aquiline {

struct AttentionTile;
struct PartialLayout;

// The largest of some scores and where it stands; the lowest id of several.
struct Candidate {
    float score;
    std::int64_t id;
};

// Which noise is added to the scores of a row; see noise of the reference kernels.
struct NoiseKey {
    std::uint32_t first;
    std::uint32_t second;
};

struct KernelTable {
    // out = row / root mean square * weight. `out` may be `row`.
    void (*rms_norm)(const float* row, const float* weight, float epsilon, int width, float* out);

    // Rotate one head of 2 * half numbers in place: number i with number i + half.
    void (*rotate)(float* head, const float* cosines, const float* sines, int half);

    // out = silu(gate) * up. `out` may be either.
    void (*silu_multiply)(const float* gate, const float* up, int width, float* out);

    // out = e^row, as attention and silu take it.
    void (*exponentials)(const float* row, int width, float* out);

    void (*round_to_bfloat16)(const float* row, int width, std::uint16_t* out);
    void (*widen_bfloat16)(const std::uint16_t* row, int width, float* out);

    // Round one head to int8, ties to even; returns its scale, largest magnitude / 127. A head with a number that is not
    // finite gets a scale that is none either.
    float (*quantize_head)(const float* head, int width, std::int8_t* out);

    // Attention of some rows that share their pages over one segment.
    void (*attend)(const AttentionTile& tile);

    // Take what a query summed over a later segment into what it summed before.
    void (*merge_partial)(const float* later, const PartialLayout& layout, float* sums);

    // The best of scores[0 .. count - 1], whose ids are first_id, first_id + 1, ...
    Candidate (*largest)(const float* scores, int count, std::int64_t first_id);

    // Noise: 32 random bits, and a standard Gumbel number, of ids first_id, first_id + 1, ...
    void (*noise_bits)(std::int64_t first_id, int count, NoiseKey key, std::uint32_t* out);
    void (*gumbel_noise)(std::int64_t first_id, int count, NoiseKey key, float* out);

    LogitKernels logits;
};

extern const KernelTable portable_kernels;
#if defined(AQUILINE_HAS_X86_KERNELS)
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;
#endif

const KernelTable& kernels_for(Level level);

}  // namespace aquiline
