// Sixteen floats side by side, the unit in which every kernel works.
//
// Compiled once per instruction set, each time with that set's flags, so everything here has internal linkage: a linker
// that kept one copy of an inline function could keep the one an older processor cannot run.
//
// The compiler must not contract products and sums on its own (-ffp-contract=off): where a fused operation is wanted it
// is written as `multiply_add`, so that the same row has the same bits wherever the compiler inlines the code.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace aquiline {
namespace {

constexpr int kLanes = 16;

typedef float Lanes __attribute__((vector_size(64)));
typedef std::int32_t IntLanes __attribute__((vector_size(64)));
typedef std::uint32_t WordLanes __attribute__((vector_size(64)));
typedef std::uint16_t HalfLanes __attribute__((vector_size(32)));

constexpr IntLanes kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

inline Lanes broadcast(float value) { return Lanes{} + value; }

inline Lanes load(const float* source) {
    Lanes result;
    std::memcpy(&result, source, sizeof result);
    return result;
}

inline void store(float* target, Lanes value) { std::memcpy(target, &value, sizeof value); }

// The first `count` of sixteen numbers, zeros behind them; nothing behind them is read.
inline Lanes load_first(const float* source, int count) {
    Lanes result{};
    std::memcpy(&result, source, sizeof(float) * static_cast<std::size_t>(count));
    return result;
}

inline void store_first(float* target, Lanes value, int count) {
    std::memcpy(target, &value, sizeof(float) * static_cast<std::size_t>(count));
}

inline IntLanes bits_of(Lanes value) { return reinterpret_cast<IntLanes>(value); }
inline Lanes float_of(IntLanes bits) { return reinterpret_cast<Lanes>(bits); }

// bfloat16 is the upper half of a float.
inline Lanes widen(HalfLanes halves) {
    return reinterpret_cast<Lanes>(__builtin_convertvector(halves, WordLanes) << 16);
}

inline Lanes load_bfloat16(const std::uint16_t* source) {
    HalfLanes halves;
    std::memcpy(&halves, source, sizeof halves);
    return widen(halves);
}

inline Lanes load_first_bfloat16(const std::uint16_t* source, int count) {
    HalfLanes halves{};
    std::memcpy(&halves, source, sizeof(std::uint16_t) * static_cast<std::size_t>(count));
    return widen(halves);
}

// Round to nearest, ties to even, as PyTorch does; a NaN stays one.
inline HalfLanes to_bfloat16(Lanes value) {
    const WordLanes bits = reinterpret_cast<WordLanes>(value);
    const WordLanes rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const WordLanes words = (value == value) ? rounded : ((bits >> 16) | 0x40u);
    return __builtin_convertvector(words, HalfLanes);
}

inline void store_bfloat16(std::uint16_t* target, Lanes value) {
    const HalfLanes halves = to_bfloat16(value);
    std::memcpy(target, &halves, sizeof halves);
}

inline void store_first_bfloat16(std::uint16_t* target, Lanes value, int count) {
    const HalfLanes halves = to_bfloat16(value);
    std::memcpy(target, &halves, sizeof(std::uint16_t) * static_cast<std::size_t>(count));
}

inline Lanes multiply_add(Lanes first, Lanes second, Lanes addend) {
#if defined(__AVX512F__)
    return reinterpret_cast<Lanes>(_mm512_fmadd_ps(reinterpret_cast<__m512>(first), reinterpret_cast<__m512>(second),
                                                   reinterpret_cast<__m512>(addend)));
#else
    return first * second + addend;
#endif
}

inline Lanes larger(Lanes first, Lanes second) { return first > second ? first : second; }

// Sums are taken over a fixed tree, so they do not depend on who asks.
inline float sum_of_lanes(Lanes value) {
    value += __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    value += __builtin_shufflevector(value, value, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    value += __builtin_shufflevector(value, value, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    value += __builtin_shufflevector(value, value, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return value[0];
}

inline float largest_lane(Lanes value) {
    value = larger(value, __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    value = larger(value, __builtin_shufflevector(value, value, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    value = larger(value, __builtin_shufflevector(value, value, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    value = larger(value, __builtin_shufflevector(value, value, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
    return value[0];
}

// Lane i of the result is the sum of the lanes of values[i]: sixteen dot products end in a quarter of the shuffles that
// sixteen calls of `sum_of_lanes` need. Each stage adds halves, quarters, ... of neighbouring vectors.
inline Lanes sums_of_each(Lanes (&values)[kLanes]) {
    for (int i = 0; i < 8; ++i) {
        const Lanes low = __builtin_shufflevector(values[i], values[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20,
                                                  21, 22, 23);
        const Lanes high = __builtin_shufflevector(values[i], values[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26,
                                                   27, 28, 29, 30, 31);
        values[i] = low + high;
    }
    for (int i = 0; i < 4; ++i) {
        const Lanes low = __builtin_shufflevector(values[i], values[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11,
                                                  24, 25, 26, 27);
        const Lanes high = __builtin_shufflevector(values[i], values[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15,
                                                   28, 29, 30, 31);
        values[i] = low + high;
    }
    for (int i = 0; i < 2; ++i) {
        const Lanes low = __builtin_shufflevector(values[i], values[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25,
                                                  12, 13, 28, 29);
        const Lanes high = __builtin_shufflevector(values[i], values[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27,
                                                   14, 15, 30, 31);
        values[i] = low + high;
    }
    const Lanes low = __builtin_shufflevector(values[0], values[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28,
                                              14, 30);
    const Lanes high = __builtin_shufflevector(values[0], values[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29,
                                               15, 31);
    return low + high;
}

// e^x within 2 units in the last place. Below -87.3, where the result would leave the normal range, it is 0; above 88.3
// it stays at e^88.3.
inline Lanes exponential(Lanes x) {
    const Lanes highest = broadcast(88.3f), lowest = broadcast(-87.3f);
    const Lanes clamped = larger(x < highest ? x : highest, lowest);
    // Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits.
    const Lanes magic = broadcast(12582912.0f);
    const Lanes shifted = multiply_add(clamped, broadcast(1.44269504f), magic);
    const Lanes power = shifted - magic;
    // ln 2 in two parts, the first short enough that its product with `power` is exact.
    Lanes rest = multiply_add(power, broadcast(-0.693359375f), clamped);
    rest = multiply_add(power, broadcast(2.12194440e-4f), rest);
    // The Taylor series: on |rest| <= ln(2) / 2 the first term left out is below a tenth of the last place.
    Lanes series = broadcast(1.0f / 5040);
    series = multiply_add(series, rest, broadcast(1.0f / 720));
    series = multiply_add(series, rest, broadcast(1.0f / 120));
    series = multiply_add(series, rest, broadcast(1.0f / 24));
    series = multiply_add(series, rest, broadcast(1.0f / 6));
    series = multiply_add(series, rest, broadcast(0.5f));
    series = multiply_add(series * rest, rest, rest) + 1.0f;
    const IntLanes exponent = (bits_of(shifted) - bits_of(magic)) << 23;
    const Lanes result = float_of(bits_of(series) + exponent);
    return x < lowest ? Lanes{} : result;
}

// The natural logarithm of positive normal numbers.
inline Lanes logarithm(Lanes x) {
    // Subtracting the bits of sqrt(1/2) before the exponent is cut off leaves a mantissa between sqrt(1/2) and sqrt(2).
    const IntLanes root_half = bits_of(broadcast(0.70710678f));
    const IntLanes exponent = (bits_of(x) - root_half) >> 23;
    const Lanes mantissa = float_of(bits_of(x) - (exponent << 23));
    const Lanes power = __builtin_convertvector(exponent, Lanes);
    // log m = 2 artanh(s) with s = (m - 1) / (m + 1), |s| < 0.172.
    const Lanes s = (mantissa - 1.0f) / (mantissa + 1.0f);
    const Lanes square = s * s;
    Lanes series = broadcast(2.0f / 9);
    series = multiply_add(series, square, broadcast(2.0f / 7));
    series = multiply_add(series, square, broadcast(2.0f / 5));
    series = multiply_add(series, square, broadcast(2.0f / 3));
    const Lanes small = multiply_add(series * square, s, s + s);
    return multiply_add(power, broadcast(0.693359375f), multiply_add(power, broadcast(-2.12194440e-4f), small));
}

}  // namespace
}  // namespace aquiline
