#pragma once
// The group machine with a clock of our own.

#include <doctest/doctest.h>

#include "group_stash.hpp"

namespace rollring::test {

inline constexpr std::int64_t one_second = 1'000'000'000;

// Sends records, and counts dropped ones.
class Bench {
  public:
    explicit Bench(const StashOptions& options, std::uint64_t records_max = ~std::uint64_t{0})
        : stash(options, records_max) {}

    void send(std::uint64_t prompt, std::uint32_t repetition, double reward = 0,
              std::uint32_t size = 0) {
        Arrival arrival;
        arrival.key = {prompt, 0};
        arrival.repetition_id = repetition;
        arrival.reward = reward;
        arrival.group_size = size;
        send(arrival);
    }
    void send(Arrival arrival) {
        arrival.record = next_record++;
        arrival.n_tokens = 10;
        stash.admit(arrival, now_ns, version);
        REQUIRE(stash.account().conserved());
    }
    bool cut() { return stash.cut(now_ns, version, batch); }
    std::uint64_t dropped(DropReason reason) const {
        return stash.account().dropped[static_cast<std::size_t>(reason)].records;
    }

    GroupStash stash;
    BatchPlan batch;
    std::int64_t now_ns = 1;
    std::int64_t version = -1;
    std::uint32_t next_record = 0;
};

}  // namespace rollring::test
