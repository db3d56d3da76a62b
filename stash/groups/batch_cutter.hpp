#pragma once
// Chooses the ready groups of the next batch. It changes nothing.

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "group.hpp"
#include "source_shares.hpp"

namespace rollring {

// The inputs of the choice; all must outlive it.
struct Choice {
    const StashOptions& options;
    const Slab<Group>& groups;
    const AgeList& by_age;
    const ReadyList& ready;
    const SourceShares& shares;
    std::uint64_t records_max;  // of one batch
};

class BatchCutter {
  public:
    // `partial`: take all ready groups, even if they are less than a batch.
    BatchCutter(const Choice& from, bool partial) : from_(from), partial_(partial) {}

    // Indices in shipping order; empty if there are not enough groups.
    std::vector<std::uint32_t> choose();
    // The number of groups found, even if they are not enough.
    [[nodiscard]] std::uint64_t found() const { return found_; }
    // Weighted tokens of the chosen groups, by source.
    [[nodiscard]] const std::map<std::int64_t, double>& served() const { return served_; }

  private:
    template <class Visit>
    void for_each_candidate(Visit visit) const;
    [[nodiscard]] std::uint64_t window_groups() const;
    [[nodiscard]] bool enough() const;
    bool take(std::uint32_t index);
    std::map<std::int64_t, std::deque<std::uint32_t>>::iterator next_source();

    Choice from_;
    bool partial_;
    std::map<std::int64_t, std::deque<std::uint32_t>> waiting_;  // by source, in shipping order
    std::map<std::int64_t, double> served_;                      // by this batch
    std::vector<std::uint32_t> chosen_;
    std::uint64_t found_ = 0;
    bool full_ = false;
    std::uint64_t records_ = 0;  // failure marks included
    std::uint64_t sequences_ = 0;
    std::uint64_t tokens_ = 0;
};

}  // namespace rollring
