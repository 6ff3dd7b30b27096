#include "machine_speed.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

#include "speed_kernels.h"

namespace aquiline {
namespace {

constexpr std::int64_t kBytesPerStep = 256;
constexpr std::int64_t kWordsPerStep = kBytesPerStep / sizeof(std::uint32_t);
constexpr int kMaxRounds = 65536;
constexpr std::uint16_t kBfloat16One = 0x3f80;

// As for panels: more tasks than threads, so that a thread which loses its core for a while holds up little.
constexpr int kTasksPerThread = 4;

std::unique_ptr<const UnitOperands> unit_operands() {
    auto operands = std::make_unique<UnitOperands>();
    std::fill(std::begin(operands->float32_columns), std::end(operands->float32_columns), 1.0f);
    std::fill(std::begin(operands->float32_inputs), std::end(operands->float32_inputs), 1.0f);
    std::fill(std::begin(operands->bfloat16_columns), std::end(operands->bfloat16_columns), kBfloat16One);
    std::fill(std::begin(operands->bfloat16_inputs), std::end(operands->bfloat16_inputs), kBfloat16One);
    std::fill(std::begin(operands->int8_columns), std::end(operands->int8_columns), std::uint8_t{1});
    std::fill(std::begin(operands->int8_inputs), std::end(operands->int8_inputs), std::int8_t{1});
    return operands;
}

}  // namespace

const SpeedKernels& speed_kernels_for(Level level) {
#if defined(AQUILINE_HAS_X86_KERNELS)
    if (level == Level::avx512) return avx512_speed_kernels;
    if (level == Level::avx2) return avx2_speed_kernels;
#endif
    (void)level;
    return portable_speed_kernels;
}

MemoryBuffer::MemoryBuffer(std::int64_t num_bytes) {
    if (num_bytes < kBytesPerStep || num_bytes % kBytesPerStep != 0) {
        throw std::invalid_argument("a buffer to read has a positive multiple of 256 bytes");
    }
    words_ = AlignedMemory<std::uint32_t>(static_cast<std::size_t>(num_bytes) / sizeof(std::uint32_t));
}

void MemoryBuffer::fill(std::uint32_t word) { std::fill_n(words_.data(), words_.size(), word); }

std::uint32_t MemoryBuffer::read(ThreadPool& threads) const {
    const auto sum_words = speed_kernels_for(detected_level()).sum_words;
    const std::int64_t num_steps = static_cast<std::int64_t>(words_.size()) / kWordsPerStep;
    const int num_tasks = threads.num_threads() * kTasksPerThread;
    std::atomic<std::uint32_t> total{0};
    threads.run(num_tasks, [&](int task) {
        const std::int64_t first = num_steps * task / num_tasks * kWordsPerStep;
        const std::int64_t end = num_steps * (task + 1) / num_tasks * kWordsPerStep;
        total.fetch_add(sum_words(words_.data() + first, end - first), std::memory_order_relaxed);
    });
    return total.load();
}

double multiply_and_add(ThreadPool& threads, ProductKind kind, int num_rounds) {
    if (num_rounds < 1 || num_rounds > kMaxRounds) throw std::invalid_argument("num_rounds must be 1 to 65536");
    const SpeedKernels& kernels = speed_kernels_for(detected_level());
    const auto loop = kind == ProductKind::float32    ? kernels.float32_products
                      : kind == ProductKind::bfloat16 ? kernels.bfloat16_products
                                                      : kernels.int8_products;
    const auto operands = unit_operands();
    const int num_tasks = threads.num_threads() * kTasksPerThread;
    std::vector<double> sums(static_cast<std::size_t>(num_tasks));
    threads.run(num_tasks, [&](int task) { sums[static_cast<std::size_t>(task)] = loop(*operands, num_rounds); });
    double total = 0.0;
    for (const double sum : sums) total += sum;
    return total;
}

}  // namespace aquiline
