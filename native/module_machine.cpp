// Threads, instruction sets and guarded memory, for Python.

#include <atomic>

#include "aligned_memory.h"
#include "bindings.h"
#include "cpu_features.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace aquiline {
namespace {

// Sum of the task numbers, for the tests of the pool.
std::int64_t sum_tasks(ThreadPool& threads, int num_tasks) {
    std::atomic<std::int64_t> sum{0};
    threads.run(num_tasks, [&](int task) { sum.fetch_add(task, std::memory_order_relaxed); });
    return sum.load();
}

// Sum of the numbers of shared items, for the same tests.
std::int64_t sum_items(ThreadPool& threads, int num_items) {
    std::atomic<std::int64_t> sum{0};
    threads.share_out(num_items, [&](int first, int end) {
        for (int item = first; item < end; ++item) sum.fetch_add(item, std::memory_order_relaxed);
    });
    return sum.load();
}

}  // namespace

void bind_machine(nb::module_& module) {
    module.def("level", [] { return level_name(detected_level()); });
    module.def("guard_allocations", guard_allocations, "is_guarded"_a);
    nb::class_<ThreadPool>(module, "ThreadPool")
        .def(nb::init<int>(), "num_threads"_a)
        .def_prop_ro("num_threads", &ThreadPool::num_threads)
        .def("sum_tasks", sum_tasks, "num_tasks"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("sum_items", sum_items, "num_items"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace aquiline
