// Looking up continuations for Python: one call reads what is new of all requests and grows their trees.

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings.h"
#include "lookup_growth.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace aquiline {
namespace {

std::int32_t token_at(const nb::list& token_ids, std::size_t place) {
    return nb::cast<std::int32_t>(token_ids[place]);
}

std::vector<std::int32_t> tokens_from(const nb::list& token_ids, std::size_t first) {
    const std::size_t end = token_ids.size();
    std::vector<std::int32_t> tokens;
    if (first < end) tokens.reserve(end - first);
    for (std::size_t place = first; place < end; ++place) tokens.push_back(token_at(token_ids, place));
    return tokens;
}

void read(LookupReader& self, const nb::list& token_ids) {
    const auto num_again = static_cast<std::size_t>(self.num_needed_again());
    const std::size_t size = token_ids.size();
    std::vector<std::int32_t> last;
    if (num_again) last = tokens_from(token_ids, size - std::min(size, num_again));
    self.read(tokens_from(token_ids, static_cast<std::size_t>(self.num_read())), last);
}

void remember(LookupMemory& self, const nb::list& token_ids) {
    if (self.history != nullptr) self.history->add(tokens_from(token_ids, 0));
}

template <typename T>
nb::tuple first_of(const std::vector<T>& values, int count) {
    nb::list first;
    for (int place = 0; place < count; ++place) first.append(values[static_cast<std::size_t>(place)]);
    return nb::tuple(first);
}

nb::object columns_of(const LookupTree& tree) {
    if (tree.num_kept == 0) return nb::none();
    return nb::make_tuple(first_of(tree.tokens, tree.num_kept), first_of(tree.parents, tree.num_kept),
                          first_of(tree.survivals, tree.num_kept));
}

RowTimes times_of(const nb::object& costs) {
    const nb::object time = costs.attr("time"), least_slope = costs.attr("least_slope");
    return {[time](int num_rows) { return nb::cast<double>(time(num_rows)); },
            [least_slope](int num_rows) { return nb::cast<double>(least_slope(num_rows)); }};
}

LookupReader* read_next(const nb::list& readers, const nb::list& token_ids, std::size_t request) {
    auto* reader = nb::cast<LookupReader*>(readers[request]);
    read(*reader, nb::cast<nb::list>(token_ids[request]));
    return reader;
}

bool read_all(const nb::list& readers, const nb::list& token_ids, double least_survival) {
    if (readers.size() != token_ids.size()) throw std::invalid_argument("every request needs a reader and tokens");
    std::vector<const LookupReader*> read;
    for (std::size_t request = 0; request < readers.size(); ++request) {
        read.push_back(read_next(readers, token_ids, request));
    }
    // Only now: rates are shared, so what one request shows counts for those read before it.
    return std::any_of(read.begin(), read.end(),
                       [=](const LookupReader* reader) { return has_guess(*reader, least_survival); });
}

nb::list grow(const nb::list& readers, const nb::list& token_ids, const std::vector<int>& depths, int max_draft_tokens,
              RowWorth& worth, const nb::object& costs) {
    if (readers.size() != token_ids.size() || readers.size() != depths.size()) {
        throw std::invalid_argument("every request needs a reader, tokens and a depth");
    }
    std::vector<const LookupReader*> all;
    for (std::size_t request = 0; request < readers.size(); ++request) {
        all.push_back(read_next(readers, token_ids, request));
    }
    nb::list trees;
    for (const LookupTree& tree : grow_lookup_trees(all, depths, max_draft_tokens, worth, times_of(costs))) {
        trees.append(columns_of(tree));
    }
    return trees;
}

RateRules rate_rules(std::vector<int> length_ends, std::vector<double> generic_rates, double weight_of_generic,
                     double weight_of_shared, double most_trials) {
    return {std::move(length_ends), std::move(generic_rates), weight_of_generic, weight_of_shared, most_trials};
}

}  // namespace

void bind_lookup(nb::module_& module) {
    nb::class_<RateRules>(module, "RateRules");
    module.def("rate_rules", rate_rules, "length_ends"_a, "generic_rates"_a, "weight_of_generic"_a,
               "weight_of_shared"_a, "most_trials"_a);
    nb::class_<LookupMemory>(module, "LookupMemory")
        .def(nb::init<RateRules, RateRules, std::int64_t>(), "greedy"_a, "sampled"_a, "history_tokens"_a)
        .def("remember", remember, "token_ids"_a)
        .def_prop_ro("num_history_bytes",
                     [](const LookupMemory& self) { return self.history == nullptr ? 0 : self.history->num_bytes(); });
    nb::class_<LookupReader>(module, "LookupReader")
        .def("__init__",
             [](LookupReader* self, std::shared_ptr<LookupMemory> memory, bool is_sampled,
                std::int64_t num_prompt_tokens, std::int64_t num_again) {
                 new (self) LookupReader(std::move(memory), is_sampled, num_prompt_tokens, num_again);
             },
             "memory"_a, "is_sampled"_a, "num_prompt_tokens"_a, "num_again"_a)
        .def("read", read, "token_ids"_a)
        .def_prop_ro("num_bytes", &LookupReader::num_bytes);
    nb::class_<RowWorth>(module, "LookupWorth")
        .def("__init__",
             [](RowWorth* self, int num_rows, double expected_tokens, double other_time, int num_first_rows,
                double tree_time, bool always_pays, double least_survival) {
                 new (self) RowWorth({num_rows, expected_tokens, other_time, num_first_rows, tree_time, always_pays,
                                      least_survival});
             },
             "num_rows"_a, "expected_tokens"_a, "other_time"_a, "num_first_rows"_a, "tree_time"_a, "always_pays"_a,
             "least_survival"_a)
        .def_prop_ro("num_rows", &RowWorth::best_num_rows)
        .def_prop_ro("expected_tokens", &RowWorth::best_expected_tokens);
    module.def("read_lookup_texts", read_all, "readers"_a, "token_ids"_a, "least_survival"_a);
    module.def("grow_lookup_trees", grow, "readers"_a, "token_ids"_a, "depths"_a, "max_draft_tokens"_a, "worth"_a,
               "costs"_a);
}

}  // namespace aquiline
