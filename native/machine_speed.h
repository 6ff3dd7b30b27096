// How fast this machine reads memory and multiplies, on the threads that the kernels use.
#pragma once

#include <cstdint>

#include "aligned_memory.h"
#include "thread_pool.h"

namespace aquiline {

// Memory to read, of the kind that packed weights lie in.
class MemoryBuffer {
public:
    // Throws std::invalid_argument unless `num_bytes` is a positive multiple of 256.
    explicit MemoryBuffer(std::int64_t num_bytes);

    void fill(std::uint32_t word);

    // Read all of it once, each thread stretches of its own; the sum of its 32-bit words modulo 2^32.
    std::uint32_t read(ThreadPool& threads) const;

private:
    AlignedMemory<std::uint32_t> words_;
};

enum class ProductKind { float32, bfloat16, int8 };

// Multiply ones with ones, and add up, on every thread at once: `num_rounds` (1 to 65536) rounds in each of its tasks.
// Returns the sum, which is the number of products. Throws std::invalid_argument for other numbers of rounds.
double multiply_and_add(ThreadPool& threads, ProductKind kind, int num_rounds);

}  // namespace aquiline
