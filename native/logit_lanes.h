// Logit rules and keyed draws over a row. See lanes.h for why everything here has internal linkage.
//
// Element-wise rules are plain loops that the compiler turns into vectors: without contraction each is rounded as the
// reference rounds it, at every level.
#pragma once

#include <cmath>
#include <limits>

#include "kernel_table.h"
#include "lane_functions.h"
#include "lane_sums.h"
#include "lanes.h"
#include "sampling_kernels.h"

namespace aquiline {
namespace {

constexpr float kRuledOut = -std::numeric_limits<float>::infinity();
constexpr float kLargestFinite = std::numeric_limits<float>::max();
constexpr float kWeightScale = 0x1p40f;

// Above every Gumbel number that 32 bits can make, which is 22.9.
constexpr float kNoiseLimit = 23.0f;

// e^x 2^40 is below 1 from here on.
constexpr float kWeightlessBelow = -27.8f;

bool add_bias(const float* row, const float* bias, int count, float* out) {
    bool has_any = false;
    for (int i = 0; i < count; ++i) {
        out[i] = row[i] + bias[i];
        has_any |= out[i] > kRuledOut;
    }
    return has_any;
}

bool has_unbanned(const float* row, const std::uint8_t* is_banned, int count) {
    for (int i = 0; i < count; ++i) {
        if (is_banned[i] == 0 && row[i] > kRuledOut) return true;
    }
    return false;
}

void ban(const float* row, const std::uint8_t* is_banned, int count, float* out) {
    for (int i = 0; i < count; ++i) out[i] = is_banned[i] != 0 ? kRuledOut : row[i];
}

inline float penalised(float logit, float occurrences, bool is_in_prompt, const PenaltyRow& penalties) {
    const bool is_in_output = occurrences > 0.0f;
    const float divided = logit / penalties.repetition, multiplied = logit * penalties.repetition;
    const float repeated = logit > 0.0f ? divided : multiplied;
    float result = is_in_output || is_in_prompt ? repeated : logit;
    result = result - (is_in_output ? penalties.presence : 0.0f);
    result = result - penalties.frequency * occurrences;
    result = result < -kLargestFinite ? -kLargestFinite : result;
    result = result > kLargestFinite ? kLargestFinite : result;
    return logit == kRuledOut ? logit : result;
}

void penalise(const float* row, const PenaltyRow& penalties, int count, float* out) {
    const PenaltyRow own = penalties;
    if (own.prompt_seen == nullptr) {
        for (int i = 0; i < count; ++i) out[i] = penalised(row[i], own.counts[i], false, own);
    } else {
        for (int i = 0; i < count; ++i) out[i] = penalised(row[i], own.counts[i], own.prompt_seen[i] != 0, own);
    }
}

// Calls take(lanes, place, count) for every sixteen numbers of `count`; what is missing at the end is minus infinity.
template <class Take>
inline void for_logits(const float* row, int count, Take take) {
    int place = 0;
    for (; place + kLanes <= count; place += kLanes) take(load(row + place), place, kLanes);
    if (place < count) {
        const IntLanes is_there = is_below(lane_numbers(), count - place);
        take(select(is_there, load_first(row + place, count - place), broadcast(kRuledOut)), place, count - place);
    }
}

void block_largest(const float* row, int count, float* largest) {
    for (int first = 0; first < count; first += kBlockColumns) {
        Lanes best = broadcast(kRuledOut);
        const int size = count - first < kBlockColumns ? count - first : kBlockColumns;
        for_logits(row + first, size, [&](const Lanes& values, int, int) { best = larger(values, best); });
        largest[first / kBlockColumns] = largest_lane(best);
    }
}

inline Lanes log_weights_of(const Lanes& logits, LogWeightScale scale) {
    return (logits - broadcast(scale.largest)) / broadcast(scale.temperature);
}

inline float log_weight_of(float logit, LogWeightScale scale) { return (logit - scale.largest) / scale.temperature; }

// Calls take(log-weights, place, count) for the blocks whose best log-weight `is_worthwhile`.
template <class Worthwhile, class Take>
inline void for_blocks(const RowPart& part, LogWeightScale scale, Worthwhile is_worthwhile, Take take) {
    for (int first = 0; first < part.count; first += kBlockColumns) {
        if (!is_worthwhile(log_weight_of(part.block_largest[first / kBlockColumns], scale))) continue;
        const int size = part.count - first < kBlockColumns ? part.count - first : kBlockColumns;
        for_logits(part.logits + first, size, [&](const Lanes& values, int place, int count) {
            take(log_weights_of(values, scale), first + place, count);
        });
    }
}

// The integers of sixteen weights. NaN weighs nothing.
struct IntegerWeights {
#if defined(__AVX512F__)
    __m512i low, high;
#else
    std::int64_t numbers[kLanes];
#endif
};

inline IntegerWeights integer_weights_of(const Lanes& log_weights) {
    const IntLanes has_weight = is_greater(log_weights, broadcast(kWeightlessBelow));
    const Lanes weights = exponential(select(has_weight, log_weights, broadcast(-100.0f))) * kWeightScale;
    IntegerWeights result;
#if defined(__AVX512F__)
    const __m512 all = reinterpret_cast<__m512>(weights.parts[0]);
    result.low = _mm512_cvttps_epi64(_mm512_castps512_ps256(all));
    result.high = _mm512_cvttps_epi64(_mm512_extractf32x8_ps(all, 1));
#else
    float numbers[kLanes];
    store(numbers, weights);
    for (int lane = 0; lane < kLanes; ++lane) result.numbers[lane] = static_cast<std::int64_t>(numbers[lane]);
#endif
    return result;
}

inline void add_weights(const IntegerWeights& weights, IntegerWeights& sums) {
#if defined(__AVX512F__)
    sums.low = _mm512_add_epi64(sums.low, weights.low);
    sums.high = _mm512_add_epi64(sums.high, weights.high);
#else
    for (int lane = 0; lane < kLanes; ++lane) sums.numbers[lane] += weights.numbers[lane];
#endif
}

std::int64_t sum_of_weights(const RowPart& part, LogWeightScale scale) {
    IntegerWeights sums{};
    for_blocks(
        part, scale, [](float best) { return best > kWeightlessBelow; },
        [&](const Lanes& log_weights, int, int) { add_weights(integer_weights_of(log_weights), sums); });
    std::int64_t numbers[kLanes];
    std::memcpy(numbers, &sums, sizeof numbers);
    std::int64_t total = 0;
    for (const std::int64_t number : numbers) total += number;
    return total;
}

void integer_weights(const float* log_weights, int count, std::int64_t* out) {
    for_logits(log_weights, count, [&](const Lanes& values, int place, int size) {
        const IntegerWeights weights = integer_weights_of(values);
        std::memcpy(out + place, &weights, sizeof(std::int64_t) * static_cast<std::size_t>(size));
    });
}

// The chosen lanes side by side, and their ids; what lies behind them may be overwritten as far as sixteen lanes reach.
inline void store_chosen(std::uint32_t chosen, const Lanes& values, std::int32_t first_id, float* out,
                         std::int32_t* ids) {
#if defined(__AVX512F__)
    const auto mask = static_cast<__mmask16>(chosen);
    const __m512i numbers = reinterpret_cast<__m512i>((lane_numbers() + first_id).parts[0]);
    _mm512_storeu_ps(out, _mm512_maskz_compress_ps(mask, reinterpret_cast<__m512>(values.parts[0])));
    _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(mask, numbers));
#else
    float numbers[kLanes];
    store(numbers, values);
    for (; chosen != 0; chosen &= chosen - 1) {
        const int lane = __builtin_ctz(chosen);
        *out++ = numbers[lane];
        *ids++ = first_id + lane;
    }
#endif
}

int collect(const RowPart& part, LogWeightScale scale, float cut, float* log_weights, std::int32_t* ids) {
    int num_found = 0;
    // Minus infinity is ruled out already, and padding has it too.
    const Lanes below = broadcast(cut > kRuledOut ? std::nextafterf(cut, kRuledOut) : cut);
    for_blocks(
        part, scale, [&](float best) { return best >= cut; },
        [&](const Lanes& values, int place, int) {
            const std::uint32_t found = mask_bits(is_greater(values, below));
            if (found == 0) return;
            const std::int32_t first = static_cast<std::int32_t>(part.first_id) + place;
            store_chosen(found, values, first, log_weights + num_found, ids + num_found);
            num_found += __builtin_popcount(found);
        });
    return num_found;
}

// At least the Gumbel number of these bits, and at most 0.07 more, in a fraction of its operations: -log(-log1p(-u)) is
// at most -log(u), and the bits of a float read as a number are 2^23 times at most its logarithm to base 2, plus 127.
inline Lanes noise_bound(const WordLanes& bits) {
    const Lanes uniform = (to_float(bits) + 0.5f) * 0x1p-32f;
    const Lanes power = to_float(with_bits_of<IntLanes>(uniform)) * 0x1p-23f - 127.0f;
    return 0.001f - power * 0.6931472f;
}

Candidate best_with_noise(const RowPart& part, LogWeightScale scale, NoiseKey key) {
    const IntLanes numbers = lane_numbers();
    LaneCandidates lanes{broadcast(kRuledOut), numbers};
    float best_so_far = kRuledOut;
    // A later column must be better to be chosen, so what can only be as good may be passed over.
    const auto can_win = [&](float log_weight) { return log_weight + kNoiseLimit > best_so_far; };
    for_blocks(part, scale, can_win, [&](const Lanes& log_weights, int place, int) {
        const WordLanes bits = random_bits(ids_from(part.first_id + place), key);
        if (mask_bits(is_greater(log_weights + noise_bound(bits), broadcast(best_so_far))) == 0) return;
        lanes.offer(log_weights + gumbel_of(bits), numbers + place);
        best_so_far = largest_lane(lanes.scores);
    });
    return best_of(lanes, part.first_id);
}

Candidate best_listed(const float* log_weights, const std::int32_t* ids, int count, NoiseKey key) {
    Candidate best{kRuledOut, 0};
    for_logits(log_weights, count, [&](const Lanes& values, int place, int size) {
        std::int32_t own[kLanes] = {};
        std::memcpy(own, ids + place, sizeof(std::int32_t) * static_cast<std::size_t>(size));
        WordLanes words;
        std::memcpy(&words, own, sizeof words);
        float scores[kLanes];
        store(scores, values + gumbel_of(random_bits(words, key)));
        for (int lane = 0; lane < size; ++lane) {
            if (scores[lane] > best.score) best = {scores[lane], own[lane]};
        }
    });
    return best;
}

void noisy_scores(const float* row, const std::int64_t* ids, int count, LogWeightScale scale, NoiseKey key,
                  float* out) {
    const Lanes nothing = broadcast(kRuledOut);
    for_logits(row, count, [&](const Lanes& values, int place, int size) {
        WordLanes words = ids_from(place);
        if (ids != nullptr) {
            std::uint32_t own[kLanes] = {};
            for (int lane = 0; lane < size; ++lane) own[lane] = static_cast<std::uint32_t>(ids[place + lane]);
            std::memcpy(&words, own, sizeof words);
        }
        const Lanes scores = log_weights_of(values, scale) + gumbel_of(random_bits(words, key));
        store_first(out + place, larger(scores, nothing), size);
    });
}

float sum_of_exponentials(const float* scores, int count, float largest) {
    Lanes sums{};
    for_logits(scores, count, [&](const Lanes& values, int, int) { sums = sums + exponential(values - largest); });
    return sum_of_lanes(sums);
}

constexpr LogitKernels logit_kernels = {
    add_bias,        has_unbanned, ban,             penalise,    block_largest, sum_of_weights,
    integer_weights, collect,      best_with_noise, best_listed, noisy_scores,  sum_of_exponentials,
};

}  // namespace
}  // namespace aquiline
