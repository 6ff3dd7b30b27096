// Memory of packed weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace aquiline {

// A part of a block; the block lives as long as any part of it.
struct WeightPiece {
    std::shared_ptr<void> owner;
    std::uint8_t* data = nullptr;
};

// Hands out parts of large blocks that lie on huge pages where the system has them: weights are read from end to end in
// every step, and with small pages the processor spends a tenth of that time on finding them. The matrices of a model
// are mostly smaller than a huge page, so they share blocks.
class WeightMemory {
public:
    // Zero-filled, begins on a cache line.
    WeightPiece allocate(std::size_t num_bytes);

private:
    std::mutex mutex_;
    std::shared_ptr<void> block_;
    std::uint8_t* next_ = nullptr;
    std::size_t num_left_ = 0;
};

// The same without sharing, for a single matrix.
WeightPiece allocate_weights(std::size_t num_bytes);

}  // namespace aquiline
