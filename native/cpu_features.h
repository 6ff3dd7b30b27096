// Which instruction sets this machine has.

#pragma once

namespace aquiline {

// avx512 means F, BW, DQ, VL, VNNI and BF16 together; avx2 includes FMA and F16C.
enum class Level { portable, avx2, avx512 };

// The best level of this machine.
Level hardware_level();

// The best level that this machine and the environment variable AQUILINE_CPU_LEVEL (portable, avx2 or avx512) allow.
// Read anew at every call. Throws std::invalid_argument if the variable holds anything else.
Level detected_level();

const char* level_name(Level level);

}  // namespace aquiline
