#include "weight_memory.h"

#include <algorithm>
#include <new>

#include "aligned_memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace aquiline {
namespace {

constexpr std::size_t kHugePage = std::size_t{1} << 21;
constexpr std::size_t kBlockBytes = 16 * kHugePage;

std::size_t rounded_up(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

#if defined(__linux__)
struct Mapping {
    void* start;
    std::size_t num_bytes;
    Mapping(void* start_of, std::size_t size) : start(start_of), num_bytes(size) {}
    ~Mapping() { munmap(start, num_bytes); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
};

WeightPiece new_block(std::size_t num_bytes) {
    // Pages that are never touched take no memory, so the part before the first whole huge page costs nothing.
    const std::size_t mapped = num_bytes + kHugePage;
    void* const start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    auto owner = std::make_shared<Mapping>(start, mapped);
    auto* const first = reinterpret_cast<std::uint8_t*>(rounded_up(reinterpret_cast<std::uintptr_t>(start), kHugePage));
    // Advice: where there are no huge pages, small ones do.
    madvise(first, num_bytes, MADV_HUGEPAGE);
    return {owner, first};
}
#else
WeightPiece new_block(std::size_t num_bytes) { return allocate_weights(num_bytes); }
#endif

}  // namespace

WeightPiece allocate_weights(std::size_t num_bytes) {
    const auto memory = std::make_shared<AlignedMemory<std::uint8_t>>(num_bytes);
    return {memory, memory->data()};
}

WeightPiece WeightMemory::allocate(std::size_t num_bytes) {
    if (are_allocations_guarded()) return allocate_weights(num_bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t size = rounded_up(num_bytes, kAlignment);
    if (size > num_left_) {
        const std::size_t block_bytes = std::max(rounded_up(size, kHugePage), kBlockBytes);
        const WeightPiece block = new_block(block_bytes);
        block_ = block.owner;
        next_ = block.data;
        num_left_ = block_bytes;
    }
    const WeightPiece piece{block_, next_};
    next_ += size;
    num_left_ -= size;
    return piece;
}

}  // namespace aquiline
