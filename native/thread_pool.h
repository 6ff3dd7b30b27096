// Threads that share out the tasks of one parallel loop at a time.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "thread_share.h"

namespace aquiline {

// A fixed number of threads, the caller among them. Between loops the others watch for work for a
// millisecond or two, for the next layer or step follows soon, and then sleep.
class ThreadPool {
public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Call body(task) once for every task 0 .. num_tasks - 1, in any order and on any thread, and return when all have
    // returned. `body` must neither throw nor call run. Several threads may call run; they take turns.
    template <class F>
    void run(int num_tasks, F&& body) {
        using Body = std::remove_reference_t<F>;
        if (num_tasks <= 1 || workers_.empty()) {
            for (int task = 0; task < num_tasks; ++task) body(task);
            return;
        }
        std::lock_guard<std::mutex> turn(caller_mutex_);
        run_in_turn(num_tasks, call<Body>, const_cast<void*>(static_cast<const void*>(&body)));
    }

    // Call body(first, end) for pieces that make up items 0 .. num_items - 1, each of them once. Every thread gets one
    // stretch of neighbouring items, and helps others when it has finished: a loop that reads memory in order is faster
    // so than in tasks that any thread may claim. As `run` otherwise.
    template <class F>
    void share_out(int num_items, F&& body) {
        const int num_shares = num_threads() < num_items ? num_threads() : num_items;
        if (num_shares <= 1) {
            if (num_items > 0) body(0, num_items);
            return;
        }
        const int piece = num_items / (num_shares * kPiecesPerShare) + 1;
        const auto take_all = [&](int own) {
            using Piece = ThreadShare::Piece;
            for (Piece next; !(next = shares_[own].take_front(piece)).is_empty();) body(next.first, next.end);
            for (int other = 0; other < num_shares; ++other) {
                for (Piece next; !(next = shares_[other].take_back(piece)).is_empty();) body(next.first, next.end);
            }
        };
        std::lock_guard<std::mutex> turn(caller_mutex_);
        for (int share = 0; share < num_shares; ++share) {
            const auto bound = [&](int at) { return static_cast<int>(std::int64_t{num_items} * at / num_shares); };
            shares_[share].refill(bound(share), bound(share + 1));
        }
        run_in_turn(num_shares, call<const decltype(take_all)>, const_cast<void*>(static_cast<const void*>(&take_all)));
    }

private:
    // Few enough that taking them costs nothing, so many that no thread waits long for the last one.
    static constexpr int kPiecesPerShare = 16;

    using Function = void (*)(void* context, int task);

    template <class Body>
    static void call(void* context, int task) {
        (*static_cast<Body*>(context))(task);
    }

    // The caller holds `caller_mutex_`.
    void run_in_turn(int num_tasks, Function function, void* context);
    void work();
    bool claim_and_run();
    std::uint32_t wait_for_loop(std::uint32_t seen_generation);

    // Number of the loop in the upper half, tasks that nobody has claimed in the lower. One word, so that a thread that
    // comes late cannot claim a task of the next loop with the function of the last one.
    std::atomic<std::uint64_t> unclaimed_{0};
    std::atomic<Function> function_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<int> num_tasks_{0};
    std::atomic<int> num_unfinished_{0};

    std::mutex caller_mutex_;
    std::vector<ThreadShare> shares_;
    std::mutex sleep_mutex_;
    std::condition_variable wake_;
    std::atomic<int> num_sleeping_{0};
    std::atomic<bool> is_stopping_{false};
    std::chrono::microseconds watch_time_{0};
    std::vector<std::thread> workers_;
};

}  // namespace aquiline
