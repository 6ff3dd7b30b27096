// The check that an index exists.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace aquiline {

// Throws std::out_of_range, which names `what`, unless 0 <= value < limit.
inline void check_below(std::int64_t value, std::int64_t limit, const char* what) {
    if (value < 0 || value >= limit) {
        throw std::out_of_range(std::string(what) + " " + std::to_string(value) + " is not in 0.." +
                                std::to_string(limit - 1));
    }
}

}  // namespace aquiline
