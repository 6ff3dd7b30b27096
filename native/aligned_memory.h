// Owned memory that starts on a cache line.

#pragma once

#include <cstddef>

namespace aquiline {

constexpr std::size_t kAlignment = 64;

// From now on every allocation ends at a page that may not be touched, so that a read past its end is a fault. It must
// be called before the first allocation that is to be guarded; for tests.
void guard_allocations(bool is_guarded);

bool are_allocations_guarded();

void* allocate_aligned(std::size_t num_bytes);
void free_aligned(void* memory);

// Zero-filled array of plain numbers; movable, not copyable.
template <class T>
class AlignedMemory {
public:
    AlignedMemory() = default;
    explicit AlignedMemory(std::size_t size) : data_(static_cast<T*>(allocate_aligned(size * sizeof(T)))), size_(size) {}
    ~AlignedMemory() { free_aligned(data_); }

    AlignedMemory(AlignedMemory&& other) noexcept : data_(other.data_), size_(other.size_) {
        other.data_ = nullptr;
        other.size_ = 0;
    }
    AlignedMemory& operator=(AlignedMemory&& other) noexcept {
        if (this != &other) {
            free_aligned(data_);
            data_ = other.data_;
            size_ = other.size_;
            other.data_ = nullptr;
            other.size_ = 0;
        }
        return *this;
    }
    AlignedMemory(const AlignedMemory&) = delete;
    AlignedMemory& operator=(const AlignedMemory&) = delete;

    T* data() { return data_; }
    // The holder of a constant array may hand out its memory: constness is about which array this is.
    T* data() const { return data_; }
    std::size_t size() const { return size_; }

private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace aquiline
