#pragma once
// Adds a record to its group, or refuses it with a reason.

#include <cstdint>

#include "group.hpp"
#include "record_book.hpp"

namespace rollring {

enum class Placed : std::uint8_t {
    refused,  // dropped; nothing else has changed
    added,
    retried,  // replaces earlier records of its member
};

class Placement {
  public:
    // Both must outlive this object.
    Placement(const StashOptions& options, RecordBook& book) : options_(&options), book_(&book) {}

    // `version`: the policy version now; -1 if unknown.
    Placed place(Group& group, const Arrival& arrival, std::int64_t version);

  private:
    void reset(Group& group, Member& member);
    bool put(Group& group, Member& member, const Arrival& arrival, std::int64_t version);
    bool take_reward(Member& member, double reward);

    const StashOptions* options_;
    RecordBook* book_;
    std::uint32_t finished_ = 0;  // members so far, modulo 2^32
};

// Whether a member's oldest token lags too far behind.
[[nodiscard]] inline bool is_stale(const StashOptions& options, std::int64_t version_min,
                                   std::int64_t version) {
    return options.max_lag >= 0 && version >= 0 && version_min >= 0 &&
           version - version_min > options.max_lag;
}

}  // namespace rollring
