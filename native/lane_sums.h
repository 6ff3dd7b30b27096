// Sums over lanes. They are taken over a fixed tree, lanes eight apart first, so they do not depend on who asks.
// See lanes.h for why everything here has internal linkage.
#pragma once

#include "lanes.h"

namespace aquiline {
namespace {

typedef float Half __attribute__((vector_size(32)));
typedef float Quarter __attribute__((vector_size(16)));

// Sixteen numbers brought to four: join(join(lanes i, i + 8), join(lanes i + 4, i + 12)).
template <class Join>
inline Quarter fold(const Lanes& value, const Join& join) {
#if defined(__AVX512F__)
    const FloatPart all = value.parts[0];
    const Half half = join(__builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7),
                           __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15));
    return join(__builtin_shufflevector(half, half, 0, 1, 2, 3), __builtin_shufflevector(half, half, 4, 5, 6, 7));
#elif defined(__AVX2__)
    const Half half = join(value.parts[0], value.parts[1]);
    return join(__builtin_shufflevector(half, half, 0, 1, 2, 3), __builtin_shufflevector(half, half, 4, 5, 6, 7));
#else
    return join(join(value.parts[0], value.parts[2]), join(value.parts[1], value.parts[3]));
#endif
}

struct Add {
    template <class Vector>
    Vector operator()(const Vector& first, const Vector& second) const {
        return first + second;
    }
};

struct TakeLarger {
    template <class Vector>
    Vector operator()(const Vector& first, const Vector& second) const {
        return first > second ? first : second;
    }
};

inline float sum_of_lanes(const Lanes& value) {
    const Quarter sums = fold(value, Add{});
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

inline float largest_lane(const Lanes& value) {
    Quarter best = fold(value, TakeLarger{});
    best = TakeLarger{}(best, __builtin_shufflevector(best, best, 2, 3, 0, 1));
    return best[0] > best[1] ? best[0] : best[1];
}

#if defined(__AVX512F__)
// Lane i of the result is the sum of the lanes of values[i], in the order of `sum_of_lanes`: sixteen dot products end
// in a quarter of the shuffles that sixteen such calls need. Each stage adds halves, quarters, ... of two vectors.
inline Lanes sums_of_each(Lanes (&values)[kLanes]) {
    FloatPart parts[kLanes];
    for (int i = 0; i < kLanes; ++i) parts[i] = values[i].parts[0];
    for (int i = 0; i < 8; ++i) {
        const FloatPart first = parts[i], second = parts[i + 8];
        parts[i] = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                   __builtin_shufflevector(first, second, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    for (int i = 0; i < 4; ++i) {
        const FloatPart first = parts[i], second = parts[i + 4];
        parts[i] = __builtin_shufflevector(first, second, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
                   __builtin_shufflevector(first, second, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    }
    for (int i = 0; i < 2; ++i) {
        const FloatPart first = parts[i], second = parts[i + 2];
        parts[i] = __builtin_shufflevector(first, second, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                   __builtin_shufflevector(first, second, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
    const FloatPart first = parts[0], second = parts[1];
    return {{__builtin_shufflevector(first, second, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
             __builtin_shufflevector(first, second, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)}};
}
#else
// As above, four sums at a time.
inline Lanes sums_of_each(Lanes (&values)[kLanes]) {
    Quarter sums[4];
    for (int i = 0; i < 4; ++i) {
        const Quarter a = fold(values[4 * i], Add{}), b = fold(values[4 * i + 1], Add{});
        const Quarter c = fold(values[4 * i + 2], Add{}), d = fold(values[4 * i + 3], Add{});
        const Quarter ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
        const Quarter cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
        sums[i] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    }
    Lanes result;
    std::memcpy(&result, sums, sizeof result);
    return result;
}
#endif

}  // namespace
}  // namespace aquiline
