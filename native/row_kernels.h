// Kernels on one row of activations. See lanes.h for why everything here has internal linkage.
#pragma once

#include <cmath>

#include "lane_functions.h"
#include "lane_sums.h"
#include "lanes.h"

namespace aquiline {
namespace {

// Calls full(position) for every whole sixteen numbers of a row and last(position, count) for what is left.
template <class Full, class Last>
inline void for_lanes(int width, Full full, Last last) {
    int position = 0;
    for (; position + kLanes <= width; position += kLanes) full(position);
    if (position < width) last(position, width - position);
}

inline float sum_of_squares(const float* row, int width) {
    Lanes sum{};
    for_lanes(
        width,
        [&](int i) {
            const Lanes value = load(row + i);
            sum = multiply_add(value, value, sum);
        },
        [&](int i, int count) {
            const Lanes value = load_first(row + i, count);
            sum = multiply_add(value, value, sum);
        });
    return sum_of_lanes(sum);
}

void rms_norm(const float* row, const float* weight, float epsilon, int width, float* out) {
    const float mean = sum_of_squares(row, width) / static_cast<float>(width);
    const float scale = 1.0f / std::sqrt(mean + epsilon);
    for_lanes(
        width, [&](int i) { store(out + i, load(row + i) * scale * load(weight + i)); },
        [&](int i, int count) {
            store_first(out + i, load_first(row + i, count) * scale * load_first(weight + i, count), count);
        });
}

// Products are rounded before they are added, at every level, as the reference does.
void rotate(float* head, const float* cosines, const float* sines, int half) {
    float* other = head + half;
    for_lanes(
        half,
        [&](int i) {
            const Lanes first = load(head + i), second = load(other + i);
            const Lanes cosine = load(cosines + i), sine = load(sines + i);
            store(head + i, first * cosine - second * sine);
            store(other + i, second * cosine + first * sine);
        },
        [&](int i, int count) {
            const Lanes first = load_first(head + i, count), second = load_first(other + i, count);
            const Lanes cosine = load_first(cosines + i, count), sine = load_first(sines + i, count);
            store_first(head + i, first * cosine - second * sine, count);
            store_first(other + i, second * cosine + first * sine, count);
        });
}

inline Lanes silu(Lanes x) { return x / (1.0f + exponential(-x)); }

void silu_multiply(const float* gate, const float* up, int width, float* out) {
    for_lanes(
        width, [&](int i) { store(out + i, silu(load(gate + i)) * load(up + i)); },
        [&](int i, int count) {
            store_first(out + i, silu(load_first(gate + i, count)) * load_first(up + i, count), count);
        });
}

void exponentials(const float* row, int width, float* out) {
    for_lanes(
        width, [&](int i) { store(out + i, exponential(load(row + i))); },
        [&](int i, int count) { store_first(out + i, exponential(load_first(row + i, count)), count); });
}

void round_to_bfloat16(const float* row, int width, std::uint16_t* out) {
    for_lanes(
        width, [&](int i) { store_bfloat16(out + i, load(row + i)); },
        [&](int i, int count) { store_first_bfloat16(out + i, load_first(row + i, count), count); });
}

void widen_bfloat16(const std::uint16_t* row, int width, float* out) {
    for_lanes(
        width, [&](int i) { store(out + i, load_bfloat16(row + i)); },
        [&](int i, int count) { store_first(out + i, load_first_bfloat16(row + i, count), count); });
}

// Heads smaller than this become zero: 127 / magnitude would overflow.
constexpr float kSmallestHead = 0x1p-100f;

float quantize_head(const float* head, int width, std::int8_t* out) {
    // Magnitudes are compared as integers, where a NaN is the largest of all and so is not lost.
    IntLanes magnitudes{};
    for_lanes(
        width, [&](int i) { magnitudes = larger(magnitudes, with_bits_of<IntLanes>(load(head + i)) & 0x7fffffff); },
        [&](int i, int count) {
            magnitudes = larger(magnitudes, with_bits_of<IntLanes>(load_first(head + i, count)) & 0x7fffffff);
        });
    std::int32_t largest_bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (magnitudes[lane] > largest_bits) largest_bits = magnitudes[lane];
    }
    float largest;
    std::memcpy(&largest, &largest_bits, sizeof largest);
    const bool is_empty = largest < kSmallestHead;
    const float inverse = is_empty ? 0.0f : 127.0f / largest;
    for_lanes(
        width, [&](int i) { store_int8(out + i, nearest_integers(load(head + i) * inverse)); },
        [&](int i, int count) {
            store_first_int8(out + i, nearest_integers(load_first(head + i, count) * inverse), count);
        });
    return is_empty ? 0.0f : largest / 127.0f;
}

}  // namespace
}  // namespace aquiline
