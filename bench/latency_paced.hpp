#pragma once
// Long records, one at a time and far apart, as rollout workers send them.

#include "latency.hpp"

namespace bench {

struct PacedOptions {
    std::vector<std::uint32_t> lanes = {1, 64};  // of the ring
    std::uint32_t n_tokens = 2048;
    std::int64_t gap_us = 50;
    std::uint64_t records = 4000;

    // Runs in each round.
    [[nodiscard]] std::size_t steps() const { return 2 * lanes.size() + 3; }
};

// The bare record, then rollring with each count of lanes, then both in memory that was never
// touched; in every round, one after the other.
class Paced {
  public:
    explicit Paced(PacedOptions options);
    void run_round(const Cpus& cpus, Progress& progress);
    [[nodiscard]] Json json() const;
    void print() const;

  private:
    struct Row {
        std::string name;
        Way way;
        std::uint32_t lanes = 1;
        bool warm = true;
        Percentiles from_commit = {};
        Percentiles from_push = {};
        // Of the bare record's in the same round: p50 and p99 from commit, then from push.
        std::array<std::vector<double>, 4> ratios = {};
    };
    Measurement measure(const Row& row, bool whole_push, const Cpus& cpus) const;
    void compare(Row& row, const Row& bare) const;

    PacedOptions options_;
    std::vector<Row> rows_;
};

}  // namespace bench
