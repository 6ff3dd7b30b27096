// Noise and argmax over a row of scores; aquiline/kernels/reference/noise.py defines the integers.
// See lanes.h for why everything here has internal linkage.
#pragma once

#include "kernel_table.h"
#include "lane_functions.h"
#include "lanes.h"

namespace aquiline {
namespace {

inline WordLanes mix(WordLanes words) {
    words = (words ^ (words >> 16)) * 0x21F0AAADu;
    words = (words ^ (words >> 15)) * 0x735A2D97u;
    return words ^ (words >> 15);
}

inline WordLanes random_bits(WordLanes ids, NoiseKey key) { return mix(mix(ids ^ key.first) ^ key.second); }

inline WordLanes ids_from(std::int64_t first_id) {
    return with_bits_of<WordLanes>(lane_numbers()) + static_cast<std::uint32_t>(first_id);
}

inline Lanes gumbel_of(WordLanes bits) {
    const Lanes largest = broadcast(1.0f - 0x1p-24f);
    Lanes uniform = (to_float(bits) + 0.5f) * 0x1p-32f;
    uniform = smaller(uniform, largest);
    // log1p(-u) as log(w) + d / w, where w = 1 - u as rounded and d is what rounding took away.
    const Lanes rounded = 1.0f - uniform;
    const Lanes lost = (1.0f - rounded) - uniform;
    const Lanes exponential_draw = -(logarithm(rounded) + lost / rounded);
    return -logarithm(exponential_draw);
}

// The best of each lane so far.
struct LaneCandidates {
    Lanes scores;
    IntLanes places;

    void offer(Lanes values, IntLanes at) {
        const IntLanes is_better = is_greater(values, scores);
        scores = select(is_better, values, scores);
        places = select(is_better, at, places);
    }
};

// A score that no number falls below is found too: where every score is minus infinity the first id is the best.
inline Candidate best_of(const LaneCandidates& lanes, std::int64_t first_id) {
    Candidate best{lanes.scores[0], lanes.places[0]};
    for (int lane = 1; lane < kLanes; ++lane) {
        const bool is_better = lanes.scores[lane] > best.score;
        const bool is_earlier_tie = lanes.scores[lane] == best.score && lanes.places[lane] < best.id;
        if (is_better || is_earlier_tie) best = {lanes.scores[lane], lanes.places[lane]};
    }
    best.id += first_id;
    return best;
}

Candidate largest(const float* scores, int count, std::int64_t first_id) {
    const Lanes lowest = broadcast(-__builtin_inff());
    const IntLanes numbers = lane_numbers();
    LaneCandidates lanes{lowest, numbers};
    int place = 0;
    for (; place + kLanes <= count; place += kLanes) lanes.offer(load(scores + place), numbers + place);
    if (place < count) {
        const Lanes values = load_first(scores + place, count - place);
        lanes.offer(select(is_below(numbers, count - place), values, lowest), numbers + place);
    }
    return best_of(lanes, first_id);
}

void noise_bits(std::int64_t first_id, int count, NoiseKey key, std::uint32_t* out) {
    for (int place = 0; place < count; place += kLanes) {
        const WordLanes bits = random_bits(ids_from(first_id + place), key);
        const int size = count - place < kLanes ? count - place : kLanes;
        std::memcpy(out + place, &bits, sizeof(std::uint32_t) * static_cast<std::size_t>(size));
    }
}

void gumbel_noise(std::int64_t first_id, int count, NoiseKey key, float* out) {
    for (int place = 0; place < count; place += kLanes) {
        const Lanes noise = gumbel_of(random_bits(ids_from(first_id + place), key));
        store_first(out + place, noise, count - place < kLanes ? count - place : kLanes);
    }
}

}  // namespace
}  // namespace aquiline
