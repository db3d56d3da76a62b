#pragma once
// Whether another search for a batch can find more than the last one. A search covers the whole
// window, and there may be one for every record.

#include <cstdint>

#include "rollring/stash.hpp"

namespace rollring {

class Shortage {
  public:
    [[nodiscard]] bool is_over() const { return changes_ >= missing_; }
    // A group is ready, or has left the window: the next search can find at most one group more.
    void note_change() { changes_++; }
    // The records of one group. If records may fill a batch before it has its groups, the number of
    // groups proves nothing.
    void note_group(std::uint64_t records) {
        if (records <= group_records_most_) return;
        group_records_most_ = records;
        missing_ = 0;
    }
    // A search found this many groups, and they were not a batch.
    void begin(std::uint64_t found, const StashOptions& options, std::uint64_t batch_records_max) {
        const std::uint64_t wanted = options.batch.of(BatchTarget::Unit::groups);
        const bool told = options.order == Order::windowed && wanted > found &&
                          group_records_most_ <= batch_records_max / wanted;
        missing_ = told ? wanted - found : 0;
        changes_ = 0;
    }
    void end() { missing_ = 0; }

  private:
    std::uint64_t missing_ = 0;
    std::uint64_t changes_ = 0;
    std::uint64_t group_records_most_ = 0;
};

}  // namespace rollring
