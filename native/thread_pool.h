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
        run_shared(num_tasks, [](void* context, int task) { (*static_cast<Body*>(context))(task); },
                   const_cast<void*>(static_cast<const void*>(&body)));
    }

private:
    using Function = void (*)(void* context, int task);

    void run_shared(int num_tasks, Function function, void* context);
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
    std::mutex sleep_mutex_;
    std::condition_variable wake_;
    std::atomic<int> num_sleeping_{0};
    std::atomic<bool> is_stopping_{false};
    std::chrono::microseconds watch_time_{0};
    std::vector<std::thread> workers_;
};

}  // namespace aquiline
