#include "aligned_memory.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace aquiline {
namespace {

struct Mapping {
    void* start;
    std::size_t num_bytes;
};

struct GuardedAllocations {
    std::mutex mutex;
    bool is_on = false;
    std::map<void*, Mapping> mappings;
};

// Never destroyed: memory may be freed after the static objects of this file are gone.
GuardedAllocations& guarded() {
    static auto* const allocations = new GuardedAllocations;
    return *allocations;
}

void* allocate_before_guard_page(GuardedAllocations& allocations, std::size_t num_bytes) {
#if defined(__unix__) || defined(__APPLE__)
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t usable = (num_bytes + page - 1) / page * page;
    void* const start = mmap(nullptr, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || mprotect(static_cast<char*>(start) + usable, page, PROT_NONE) != 0) {
        throw std::bad_alloc();
    }
    // The end matters here, not the alignment of the start.
    void* const memory = static_cast<char*>(start) + usable - num_bytes;
    allocations.mappings[memory] = {start, usable + page};
    return memory;
#else
    (void)allocations, (void)num_bytes;
    throw std::bad_alloc();
#endif
}

}  // namespace

void guard_allocations(bool is_guarded) {
    std::lock_guard<std::mutex> lock(guarded().mutex);
    guarded().is_on = is_guarded;
}

bool are_allocations_guarded() {
    std::lock_guard<std::mutex> lock(guarded().mutex);
    return guarded().is_on;
}

void* allocate_aligned(std::size_t num_bytes) {
    if (num_bytes == 0) return nullptr;
    {
        std::lock_guard<std::mutex> lock(guarded().mutex);
        if (guarded().is_on) return allocate_before_guard_page(guarded(), num_bytes);
    }
    const std::size_t rounded = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* const memory = std::aligned_alloc(kAlignment, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, rounded);
    return memory;
}

void free_aligned(void* memory) {
    if (memory == nullptr) return;
#if defined(__unix__) || defined(__APPLE__)
    {
        std::lock_guard<std::mutex> lock(guarded().mutex);
        const auto found = guarded().mappings.find(memory);
        if (found != guarded().mappings.end()) {
            munmap(found->second.start, found->second.num_bytes);
            guarded().mappings.erase(found);
            return;
        }
    }
#endif
    std::free(memory);
}

}  // namespace aquiline
