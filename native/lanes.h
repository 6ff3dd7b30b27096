// Sixteen numbers side by side, the unit in which every kernel works.
//
// Compiled once per instruction set, each time with that set's flags, so everything here has internal linkage: a linker
// that kept one copy of an inline function could keep the one an older processor cannot run.
//
// The compiler must not contract products and sums on its own (-ffp-contract=off): where a fused operation is wanted it
// is written as `multiply_add`, so that the same row has the same bits wherever the compiler inlines the code.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace aquiline {
namespace {

constexpr int kLanes = 16;

// A register of the instruction set. Vectors wider than that the compiler takes apart number by number in some
// operations, so sixteen numbers are as many registers as it takes.
#if defined(__AVX512F__)
constexpr int kPartBytes = 64;
#elif defined(__AVX2__)
constexpr int kPartBytes = 32;
#else
constexpr int kPartBytes = 16;
#endif
constexpr int kPartLanes = kPartBytes / 4;
constexpr int kParts = kLanes / kPartLanes;

typedef float FloatPart __attribute__((vector_size(kPartBytes)));
typedef std::int32_t IntPart __attribute__((vector_size(kPartBytes)));
typedef std::uint32_t WordPart __attribute__((vector_size(kPartBytes)));
typedef std::uint16_t HalfPart __attribute__((vector_size(kPartBytes / 2)));
typedef std::int8_t BytePart __attribute__((vector_size(kPartBytes / 4)));

template <class Number, class Part>
struct Wide {
    Part parts[kParts];
    Number operator[](int lane) const { return parts[lane / kPartLanes][lane % kPartLanes]; }
};

using Lanes = Wide<float, FloatPart>;
using IntLanes = Wide<std::int32_t, IntPart>;
using WordLanes = Wide<std::uint32_t, WordPart>;

struct HalfLanes {
    HalfPart parts[kParts];
};
struct ByteLanes {
    BytePart parts[kParts];
};

// Written out, for a loop over the parts keeps the compiler from holding them in registers.
template <class Result, class Body>
inline __attribute__((always_inline)) Result each_part(const Body& body) {
#if defined(__AVX512F__)
    return {{body(0)}};
#elif defined(__AVX2__)
    return {{body(0), body(1)}};
#else
    return {{body(0), body(1), body(2), body(3)}};
#endif
}

template <class To, class From>
inline To with_bits_of(const From& value) {
    using Part = std::remove_const_t<std::remove_reference_t<decltype(To{}.parts[0])>>;
    return each_part<To>([&](int i) { return reinterpret_cast<Part>(value.parts[i]); });
}

// The operators of numbers, for two operands of the same kind or one and a plain number.
template <class Number>
struct PlainNumber {
    using Type = Number;
};
#define AQUILINE_LANE_OPERATOR(symbol)                                                                       \
    template <class Number, class Part>                                                                      \
    inline Wide<Number, Part> operator symbol(const Wide<Number, Part>& first, const Wide<Number, Part>& second) { \
        return each_part<Wide<Number, Part>>([&](int i) { return first.parts[i] symbol second.parts[i]; });  \
    }                                                                                                        \
    template <class Number, class Part>                                                                      \
    inline Wide<Number, Part> operator symbol(const Wide<Number, Part>& first,                               \
                                              typename PlainNumber<Number>::Type second) {                   \
        return each_part<Wide<Number, Part>>([&](int i) { return first.parts[i] symbol second; });           \
    }                                                                                                        \
    template <class Number, class Part>                                                                      \
    inline Wide<Number, Part> operator symbol(typename PlainNumber<Number>::Type first,                      \
                                              const Wide<Number, Part>& second) {                            \
        return each_part<Wide<Number, Part>>([&](int i) { return first symbol second.parts[i]; });           \
    }
AQUILINE_LANE_OPERATOR(+)
AQUILINE_LANE_OPERATOR(-)
AQUILINE_LANE_OPERATOR(*)
AQUILINE_LANE_OPERATOR(/)
AQUILINE_LANE_OPERATOR(&)
AQUILINE_LANE_OPERATOR(|)
AQUILINE_LANE_OPERATOR(^)
#undef AQUILINE_LANE_OPERATOR

template <class Number, class Part>
inline Wide<Number, Part> operator<<(const Wide<Number, Part>& value, int count) {
    return each_part<Wide<Number, Part>>([&](int i) { return value.parts[i] << count; });
}
template <class Number, class Part>
inline Wide<Number, Part> operator>>(const Wide<Number, Part>& value, int count) {
    return each_part<Wide<Number, Part>>([&](int i) { return value.parts[i] >> count; });
}
inline Lanes operator-(const Lanes& value) {
    return each_part<Lanes>([&](int i) { return -value.parts[i]; });
}
inline IntLanes operator~(const IntLanes& value) {
    return each_part<IntLanes>([&](int i) { return ~value.parts[i]; });
}

inline Lanes broadcast(float value) {
    return each_part<Lanes>([&](int) { return FloatPart{} + value; });
}

inline IntLanes lane_numbers() {
    constexpr std::int32_t numbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    IntLanes result;
    std::memcpy(&result, numbers, sizeof result);
    return result;
}

inline Lanes load(const float* source) {
    return each_part<Lanes>([&](int i) {
        FloatPart part;
        std::memcpy(&part, source + i * kPartLanes, sizeof part);
        return part;
    });
}

inline void store(float* target, const Lanes& value) {
    for (int i = 0; i < kParts; ++i) std::memcpy(target + i * kPartLanes, &value.parts[i], kPartBytes);
}

// The first `count` of sixteen numbers, zeros behind them; nothing behind them is read.
inline Lanes load_first(const float* source, int count) {
    Lanes result{};
    std::memcpy(&result, source, sizeof(float) * static_cast<std::size_t>(count));
    return result;
}

inline void store_first(float* target, const Lanes& value, int count) {
    std::memcpy(target, &value, sizeof(float) * static_cast<std::size_t>(count));
}

// bfloat16 is the upper half of a float.
inline Lanes load_bfloat16(const std::uint16_t* source) {
    return each_part<Lanes>([&](int i) {
        HalfPart halves;
        std::memcpy(&halves, source + i * kPartLanes, sizeof halves);
        return reinterpret_cast<FloatPart>(__builtin_convertvector(halves, WordPart) << 16);
    });
}

inline Lanes load_first_bfloat16(const std::uint16_t* source, int count) {
    std::uint16_t halves[kLanes] = {};
    std::memcpy(halves, source, sizeof(std::uint16_t) * static_cast<std::size_t>(count));
    return load_bfloat16(halves);
}

// Round to nearest, ties to even, as PyTorch does; a NaN stays one.
inline HalfLanes to_bfloat16(const Lanes& value) {
    return each_part<HalfLanes>([&](int i) {
        const WordPart bits = reinterpret_cast<WordPart>(value.parts[i]);
        const WordPart is_number = reinterpret_cast<WordPart>(value.parts[i] == value.parts[i]);
        const WordPart rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        const WordPart words = (is_number & rounded) | (~is_number & ((bits >> 16) | 0x40u));
        return __builtin_convertvector(words, HalfPart);
    });
}

inline void store_bfloat16(std::uint16_t* target, const Lanes& value) {
    const HalfLanes halves = to_bfloat16(value);
    std::memcpy(target, &halves, sizeof halves);
}

inline void store_first_bfloat16(std::uint16_t* target, const Lanes& value, int count) {
    const HalfLanes halves = to_bfloat16(value);
    std::memcpy(target, &halves, sizeof(std::uint16_t) * static_cast<std::size_t>(count));
}

inline Lanes to_float(const IntLanes& numbers) {
    return each_part<Lanes>([&](int i) { return __builtin_convertvector(numbers.parts[i], FloatPart); });
}
inline Lanes to_float(const WordLanes& numbers) {
    return each_part<Lanes>([&](int i) { return __builtin_convertvector(numbers.parts[i], FloatPart); });
}

// The nearest integers of numbers below 2^22 in magnitude, ties to even.
inline IntLanes nearest_integers(const Lanes& value) {
    // Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits.
    const Lanes magic = broadcast(12582912.0f);
    return with_bits_of<IntLanes>(value + magic) - with_bits_of<IntLanes>(magic);
}

// Written with intrinsics, for the compiler widens a vector of bytes number by number.
inline Lanes load_int8(const std::int8_t* source) {
    return to_float(each_part<IntLanes>([&](int i) {
#if defined(__AVX512F__)
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i * kPartLanes));
        return reinterpret_cast<IntPart>(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source + i * kPartLanes));
        return reinterpret_cast<IntPart>(_mm256_cvtepi8_epi32(bytes));
#else
        IntPart numbers;
        for (int lane = 0; lane < kPartLanes; ++lane) numbers[lane] = source[i * kPartLanes + lane];
        return numbers;
#endif
    }));
}

inline Lanes load_first_int8(const std::int8_t* source, int count) {
    std::int8_t bytes[kLanes] = {};
    std::memcpy(bytes, source, static_cast<std::size_t>(count));
    return load_int8(bytes);
}

// The lowest byte of each number.
inline ByteLanes to_int8(const IntLanes& numbers) {
    return each_part<ByteLanes>([&](int i) {
#if defined(__AVX512F__)
        return reinterpret_cast<BytePart>(_mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(numbers.parts[i])));
#else
        return __builtin_convertvector(numbers.parts[i], BytePart);
#endif
    });
}

inline void store_int8(std::int8_t* target, const IntLanes& numbers) {
    const ByteLanes bytes = to_int8(numbers);
    std::memcpy(target, &bytes, sizeof bytes);
}

inline void store_first_int8(std::int8_t* target, const IntLanes& numbers, int count) {
    const ByteLanes bytes = to_int8(numbers);
    std::memcpy(target, &bytes, static_cast<std::size_t>(count));
}

// first * second + addend; rounded once where the instruction set can, twice elsewhere.
inline Lanes multiply_add(const Lanes& first, const Lanes& second, const Lanes& addend) {
    return each_part<Lanes>([&](int i) {
#if defined(__AVX512F__)
        return reinterpret_cast<FloatPart>(_mm512_fmadd_ps(reinterpret_cast<__m512>(first.parts[i]),
                                                           reinterpret_cast<__m512>(second.parts[i]),
                                                           reinterpret_cast<__m512>(addend.parts[i])));
#elif defined(__FMA__)
        return reinterpret_cast<FloatPart>(_mm256_fmadd_ps(reinterpret_cast<__m256>(first.parts[i]),
                                                           reinterpret_cast<__m256>(second.parts[i]),
                                                           reinterpret_cast<__m256>(addend.parts[i])));
#else
        return first.parts[i] * second.parts[i] + addend.parts[i];
#endif
    });
}

// Masks have all bits of a lane set or none.
inline IntLanes is_greater(const Lanes& first, const Lanes& second) {
    return each_part<IntLanes>([&](int i) { return first.parts[i] > second.parts[i]; });
}
inline IntLanes is_at_least(const IntLanes& first, int second) {
    return each_part<IntLanes>([&](int i) { return first.parts[i] >= second; });
}
inline IntLanes is_below(const IntLanes& first, int second) {
    return each_part<IntLanes>([&](int i) { return first.parts[i] < second; });
}

// Bit i is set where lane i of the mask is.
inline std::uint32_t mask_bits(const IntLanes& mask) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask.parts[0]));
#elif defined(__AVX2__)
    const int low = _mm256_movemask_ps(reinterpret_cast<__m256>(mask.parts[0]));
    const int high = _mm256_movemask_ps(reinterpret_cast<__m256>(mask.parts[1]));
    return static_cast<std::uint32_t>(low | high << 8);
#else
    std::uint32_t bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) bits |= static_cast<std::uint32_t>(mask[lane] != 0) << lane;
    return bits;
#endif
}

// `chosen` where the mask is set, `other` elsewhere.
inline Lanes select(const IntLanes& mask, const Lanes& chosen, const Lanes& other) {
    return each_part<Lanes>([&](int i) { return mask.parts[i] ? chosen.parts[i] : other.parts[i]; });
}
inline IntLanes select(const IntLanes& mask, const IntLanes& chosen, const IntLanes& other) {
    return each_part<IntLanes>([&](int i) { return mask.parts[i] ? chosen.parts[i] : other.parts[i]; });
}
inline Lanes larger(const Lanes& first, const Lanes& second) {
    return each_part<Lanes>([&](int i) { return first.parts[i] > second.parts[i] ? first.parts[i] : second.parts[i]; });
}
inline IntLanes larger(const IntLanes& first, const IntLanes& second) {
    return each_part<IntLanes>(
        [&](int i) { return first.parts[i] > second.parts[i] ? first.parts[i] : second.parts[i]; });
}
inline Lanes smaller(const Lanes& first, const Lanes& second) {
    return each_part<Lanes>([&](int i) { return first.parts[i] < second.parts[i] ? first.parts[i] : second.parts[i]; });
}

}  // namespace
}  // namespace aquiline
