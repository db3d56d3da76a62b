#pragma once
// The records that a tap has returned, so that it returns none twice: a record may lie in its lane,
// and later in the spill, there more than once.

#include <cstdint>
#include <deque>
#include <set>
#include <tuple>
#include <vector>

namespace rollring {

struct RecordName {
    std::uint32_t lane;
    std::uint32_t epoch;
    std::uint64_t sequence;

    friend auto operator<=>(const RecordName&, const RecordName&) = default;
};

class SeenRecords {
  public:
    explicit SeenRecords(std::uint32_t lanes) : lanes_(lanes) {}

    // The tap comes to a lane whose producer had sent `records` so far, none of which is in memory:
    // later ones that it does not see are missed.
    void begin_behind(std::uint32_t lane, std::uint32_t epoch, std::uint64_t records);

    // A record in its lane, in the producer's order. False: it was returned before.
    bool take(const RecordName& record);
    // A record in the spill.
    bool take_spilled(const RecordName& record);

    // Records that were passed unseen.
    [[nodiscard]] std::uint64_t missed() const { return missed_; }

  private:
    struct Gap {
        std::uint32_t epoch;
        std::uint64_t begin;
        std::uint64_t end;
        bool counted;  // in missed_; otherwise nothing shows how many there were
    };
    struct Lane {
        bool begun = false;
        std::uint32_t first_epoch = 0;
        std::uint64_t first = 0;  // of first_epoch; older records were there before the tap
        std::uint32_t epoch = 0;
        std::uint64_t next = 0;  // of epoch
        std::deque<Gap> gaps;    // missed; the latest ones
    };

    void note_gap(std::uint32_t number, const RecordName& to);
    [[nodiscard]] std::uint64_t spilled_in(std::uint32_t lane, const Gap& gap) const;

    std::vector<Lane> lanes_;
    std::set<RecordName> spilled_;     // returned from the spill, the latest ones
    std::deque<RecordName> in_order_;  // the same, oldest first
    std::uint64_t missed_ = 0;
};

}  // namespace rollring
