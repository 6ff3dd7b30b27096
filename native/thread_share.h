// What is left of one thread's part of a loop.

#pragma once

#include <atomic>
#include <cstdint>

namespace aquiline {

// Items first .. end - 1 of a loop. Its own thread takes them from the front, one piece after the other, so that it
// reads one stretch of memory; threads that have nothing left take from the back. On a cache line of its own.
class alignas(64) ThreadShare {
public:
    struct Piece {
        int first = 0;
        int end = 0;
        bool is_empty() const { return first == end; }
    };

    // Before any thread takes from it.
    void refill(int first, int end) { left_.store(pack(first, end), std::memory_order_relaxed); }

    // Up to `count` items that nobody else gets; none when nothing is left.
    Piece take_front(int count) {
        return take([count](Piece left) { return Piece{left.first, smaller(left.first + count, left.end)}; });
    }
    Piece take_back(int count) {
        return take([count](Piece left) { return Piece{larger(left.end - count, left.first), left.end}; });
    }

private:
    static int smaller(int first, int second) { return first < second ? first : second; }
    static int larger(int first, int second) { return first > second ? first : second; }
    static std::uint64_t pack(int first, int end) {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(end)) << 32 | static_cast<std::uint32_t>(first);
    }
    static Piece unpack(std::uint64_t word) {
        return {static_cast<int>(word & 0xffffffffu), static_cast<int>(word >> 32)};
    }

    template <class Choose>
    Piece take(const Choose& choose) {
        std::uint64_t word = left_.load(std::memory_order_relaxed);
        for (;;) {
            const Piece left = unpack(word);
            if (left.is_empty()) return {};
            const Piece taken = choose(left);
            const bool is_front = taken.first == left.first;
            const std::uint64_t rest = is_front ? pack(taken.end, left.end) : pack(left.first, taken.first);
            if (left_.compare_exchange_weak(word, rest, std::memory_order_relaxed)) return taken;
        }
    }

    std::atomic<std::uint64_t> left_{0};
};

}  // namespace aquiline
