#pragma once
// Long records, one at a time and far apart, as rollout workers send them.

#include "questions.hpp"
#include "ring/latency.hpp"

namespace bench {

// The bare record, then rollring with each count of lanes, then both in memory that was never
// touched; in every round, one after the other.
class Paced {
  public:
    explicit Paced(PacedOptions options);
    void run_round(const Cpus& cpus, Progress& progress);
    [[nodiscard]] Json json() const;

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
