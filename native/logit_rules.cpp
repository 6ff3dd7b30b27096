#include "logit_rules.h"

#include <stdexcept>
#include <string>

namespace aquiline {
namespace {

std::uint32_t mix(std::uint32_t word) {
    word = (word ^ (word >> 16)) * 0x21F0AAADu;
    word = (word ^ (word >> 15)) * 0x735A2D97u;
    return word ^ (word >> 15);
}

template <class Number>
void check_slots(const RequestTable<Number>& table, int num_requests, const char* name) {
    if (table.rows == nullptr) return;
    for (int request = 0; request < num_requests; ++request) {
        const std::int64_t slot = table.slots[request];
        if (slot < 0 || slot >= table.num_slots) {
            throw std::out_of_range(std::string(name) + " has no slot " + std::to_string(slot) + "; it has " +
                                    std::to_string(table.num_slots));
        }
    }
}

}  // namespace

NoiseKey mix_key(std::int64_t seed, std::int64_t sample_index, std::int64_t position, NoiseStream stream) {
    const std::uint32_t words[] = {static_cast<std::uint32_t>(seed),
                                   static_cast<std::uint32_t>(static_cast<std::uint64_t>(seed) >> 32),
                                   static_cast<std::uint32_t>(sample_index), static_cast<std::uint32_t>(position),
                                   static_cast<std::uint32_t>(stream)};
    NoiseKey key{0x243F6A88u, 0x85A308D3u};
    for (const std::uint32_t word : words) key = {mix(key.first ^ word), mix(key.second ^ word)};
    return key;
}

NoiseKey request_key(const RequestNoise& noise, int request, std::int64_t position, NoiseStream stream) {
    return mix_key(noise.seeds[request], noise.sample_indices[request], position, stream);
}

void check_rules(const LogitRules& rules) {
    check_slots(rules.bias, rules.num_requests, "the table of biases");
    check_slots(rules.stop_ids, rules.num_requests, "the table of stop ids");
    check_slots(rules.output_counts, rules.num_requests, "the table of counts");
    check_slots(rules.prompt_seen, rules.num_requests, "the table of prompt ids");
}

void check_row(const LogitRow& row, const LogitRules& rules) {
    if (row.request < 0 || row.request >= rules.num_requests) {
        throw std::out_of_range("a row belongs to request " + std::to_string(row.request) + " of " +
                                std::to_string(rules.num_requests));
    }
    if (row.path_tokens == nullptr) return;
    for (int place = 0; place < row.path_len; ++place) {
        const std::int64_t id = row.path_tokens[place];
        if (id < -1 || id >= rules.vocab_size) {
            throw std::out_of_range("a path holds token " + std::to_string(id) + "; ids end at " +
                                    std::to_string(rules.vocab_size - 1));
        }
    }
}

}  // namespace aquiline
