#include "thread_pool.h"

#include <chrono>
#include <stdexcept>
#include <string>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace aquiline {
namespace {

// As long as Python takes between two forwards; from the second on, whoever else wants the core gets it.
constexpr auto kWatchTime = std::chrono::microseconds(1500);
constexpr auto kWatchTimeAlone = std::chrono::microseconds(400);
// Threads that outnumber the cores would only keep one another from working.
constexpr auto kWatchTimeOfTooMany = std::chrono::microseconds(2);
constexpr int kPausesBetweenClockReads = 32;
constexpr int kPausesBeforeYield = 4096;
constexpr int kMaxThreads = 1024;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

std::uint32_t generation_of(std::uint64_t unclaimed) { return static_cast<std::uint32_t>(unclaimed >> 32); }
std::uint32_t tasks_in(std::uint64_t unclaimed) { return static_cast<std::uint32_t>(unclaimed); }

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
    if (num_threads < 1 || num_threads > kMaxThreads) {
        throw std::invalid_argument("a thread pool has 1 to " + std::to_string(kMaxThreads) + " threads, not " +
                                    std::to_string(num_threads));
    }
    const unsigned num_cores = std::thread::hardware_concurrency();
    watch_time_ = static_cast<unsigned>(num_threads) > num_cores ? kWatchTimeOfTooMany : kWatchTime;
    shares_ = std::vector<ThreadShare>(static_cast<std::size_t>(num_threads));
    workers_.reserve(num_threads - 1);
    for (int worker = 1; worker < num_threads; ++worker) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard<std::mutex> lock(sleep_mutex_);
        is_stopping_.store(true);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_in_turn(int num_tasks, Function function, void* context) {
    function_.store(function, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    num_tasks_.store(num_tasks, std::memory_order_relaxed);
    num_unfinished_.store(num_tasks, std::memory_order_relaxed);
    const std::uint64_t generation = generation_of(unclaimed_.load(std::memory_order_relaxed)) + std::uint64_t{1};
    // Sequentially consistent, as is the count of sleepers: either this sees a worker that is about to sleep, or that
    // worker sees the loop.
    unclaimed_.store(generation << 32 | static_cast<std::uint32_t>(num_tasks));
    if (num_sleeping_.load() > 0) {
        { std::lock_guard<std::mutex> lock(sleep_mutex_); }
        wake_.notify_all();
    }
    while (claim_and_run()) {
    }
    for (int pauses = 0; num_unfinished_.load(std::memory_order_acquire) > 0; ++pauses) {
        // A worker that has lost its core cannot finish while this thread holds it.
        pauses < kPausesBeforeYield ? pause_briefly() : std::this_thread::yield();
    }
}

bool ThreadPool::claim_and_run() {
    std::uint64_t unclaimed = unclaimed_.load(std::memory_order_acquire);
    for (;;) {
        const std::uint32_t num_left = tasks_in(unclaimed);
        if (num_left == 0) return false;
        // These may already belong to a later loop; then the claim fails, because the word has changed.
        const Function function = function_.load(std::memory_order_relaxed);
        void* const context = context_.load(std::memory_order_relaxed);
        const int num_tasks = num_tasks_.load(std::memory_order_relaxed);
        if (unclaimed_.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acq_rel,
                                             std::memory_order_acquire)) {
            function(context, num_tasks - static_cast<int>(num_left));
            num_unfinished_.fetch_sub(1, std::memory_order_acq_rel);
            return true;
        }
    }
}

void ThreadPool::work() {
    std::uint32_t seen_generation = 0;
    while (!is_stopping_.load(std::memory_order_relaxed)) {
        seen_generation = wait_for_loop(seen_generation);
        while (claim_and_run()) {
        }
    }
}

std::uint32_t ThreadPool::wait_for_loop(std::uint32_t seen_generation) {
    const auto start = std::chrono::steady_clock::now();
    const auto alone_until = start + kWatchTimeAlone, watch_until = start + watch_time_;
    auto now = start;
    do {
        for (int pauses = 0; pauses < kPausesBetweenClockReads; ++pauses) {
            const std::uint32_t generation = generation_of(unclaimed_.load(std::memory_order_relaxed));
            if (generation != seen_generation) return generation;
            pause_briefly();
        }
        now = std::chrono::steady_clock::now();
        if (now > alone_until) std::this_thread::yield();
    } while (now < watch_until);

    std::unique_lock<std::mutex> lock(sleep_mutex_);
    num_sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return is_stopping_.load() || generation_of(unclaimed_.load()) != seen_generation; });
    num_sleeping_.fetch_sub(1);
    return generation_of(unclaimed_.load());
}

}  // namespace aquiline
