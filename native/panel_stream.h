// Fetching the stream of panels ahead of its use. See lanes.h for why everything here has internal linkage.
#pragma once

#include <cstdint>

#include "panel_kernels.h"

namespace aquiline {
namespace {

// The processor's own prefetcher stops at every page, and with many rows there is too much work between two loads for
// the next ones to start early enough.
constexpr int kPrefetchDistance = 12288;

// Fetch the lines that hold `NumBytes` bytes, a stretch of the stream of panels some way ahead. Weights that a call reads
// only once bypass the last cache, which they would fill to no use: what is small, like a draft, can stay there.
template <int NumBytes>
inline void prefetch_ahead(const PanelProduct& product, const std::uint8_t* stream) {
    constexpr int kLineBytes = 64, kForReading = 0, kOnce = 0, kOften = 3;
    const std::uint8_t* const ahead = stream + kPrefetchDistance;
    if (product.num_rows <= kTileRows) {
        for (int at = 0; at < NumBytes; at += kLineBytes) __builtin_prefetch(ahead + at, kForReading, kOnce);
    } else {
        for (int at = 0; at < NumBytes; at += kLineBytes) __builtin_prefetch(ahead + at, kForReading, kOften);
    }
}

}  // namespace
}  // namespace aquiline
