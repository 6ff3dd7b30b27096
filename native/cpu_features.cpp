#include "cpu_features.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace aquiline {

Level hardware_level() {
#if defined(AQUILINE_HAS_X86_KERNELS)
    __builtin_cpu_init();
    const bool has_avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
    if (has_avx2 && has_avx512) return Level::avx512;
    if (has_avx2) return Level::avx2;
#endif
    return Level::portable;
}

Level detected_level() {
    static const Level hardware = hardware_level();
    const char* const wanted = std::getenv("AQUILINE_CPU_LEVEL");
    if (wanted == nullptr || *wanted == '\0') return hardware;
    for (const Level level : {Level::portable, Level::avx2, Level::avx512}) {
        if (std::strcmp(wanted, level_name(level)) == 0) return std::min(level, hardware);
    }
    throw std::invalid_argument("AQUILINE_CPU_LEVEL is '" + std::string(wanted) +
                                "'; it can be portable, avx2 or avx512");
}

const char* level_name(Level level) {
    switch (level) {
        case Level::avx512: return "avx512";
        case Level::avx2: return "avx2";
        default: return "portable";
    }
}

}  // namespace aquiline
