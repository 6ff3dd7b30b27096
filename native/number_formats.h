// Conversions between float32 and the two 16-bit formats, for code that is not worth an instruction of its own.

#pragma once

#include <cstdint>
#include <cstring>

namespace aquiline {

inline std::uint32_t bits_of(float number) {
    std::uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

inline float float_of(std::uint32_t bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

inline float from_bfloat16(std::uint16_t number) { return float_of(static_cast<std::uint32_t>(number) << 16); }

// Rounds to nearest, ties to even; a NaN stays one.
inline std::uint16_t to_bfloat16(float number) {
    const std::uint32_t bits = bits_of(number);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float from_float16(std::uint16_t number) {
    const std::uint32_t sign = static_cast<std::uint32_t>(number & 0x8000u) << 16;
    const std::uint32_t magnitude = number & 0x7fffu;
    if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x400u) return float_of(sign | ((magnitude << 13) + (112u << 23)));
    // Below the normal numbers a step is 2^-24.
    const float small = static_cast<float>(magnitude) * 0x1p-24f;
    return sign == 0 ? small : -small;
}

// Rounds to nearest, ties to even; what is too large becomes infinite.
inline std::uint16_t to_float16(float number) {
    const std::uint32_t bits = bits_of(number);
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
    if (magnitude < 0x38800000u) {
        // Adding 1/2 leaves a step of 2^-24 and rounds in the mode of the processor, which is to nearest even.
        return sign | static_cast<std::uint16_t>(bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f));
    }
    return sign | static_cast<std::uint16_t>((magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

}  // namespace aquiline
