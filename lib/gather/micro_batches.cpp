#include "rollring/batch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace rollring {

Result<MicroBatches> micro_batches(std::span<const std::uint32_t> lengths,
                                   std::uint64_t token_budget) {
    if (token_budget == 0) {
        return refused(Errc::invalid_argument, "a micro-batch must have at least 1 token");
    }
    std::vector<std::uint32_t> order(lengths.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::sort(
        order, {}, [&](std::uint32_t i) { return std::pair{~std::uint64_t{0} - lengths[i], i}; });
    if (!order.empty() && lengths[order.front()] > token_budget) {
        return refused(Errc::invalid_argument,
                       fmt::format("sequence {} has {} tokens, more than the {} of a micro-batch",
                                   order.front(), lengths[order.front()], token_budget));
    }
    MicroBatches made;
    std::uint64_t tokens = 0;
    std::set<std::pair<std::uint64_t, std::size_t>> room;  // (tokens left, bin)
    for (const std::uint32_t sequence : order) {
        const std::uint64_t length = lengths[sequence];
        tokens += length;
        auto fits = room.lower_bound({length, 0});
        std::size_t bin = made.bins.size();
        std::uint64_t left = token_budget;
        if (fits != room.end()) {
            std::tie(left, bin) = *fits;
            room.erase(fits);
        } else {
            made.bins.emplace_back();
        }
        made.bins[bin].push_back(sequence);
        room.emplace(left - length, bin);
    }
    for (auto& bin : made.bins) std::ranges::sort(bin);
    if (!made.bins.empty()) {
        made.fill = static_cast<double>(tokens) /
                    (static_cast<double>(made.bins.size()) * static_cast<double>(token_budget));
    }
    return made;
}

}  // namespace rollring
