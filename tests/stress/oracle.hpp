#pragma once
// Judges the promises from outside, by the journal alone. Throws Failure at the first one that is
// broken.
//
//   P1 a group that was pushed whole is acknowledged, unless a member of it failed, or it took so
//      long that the policy may have dropped it
//   P2 no living process is taken for dead (silence: see the driver)
//   P3 a group is acknowledged once; an acknowledgement that was cut short is atomic
//   P5 (each trainer judges its account)
//   P6 members of one key only, all of them, each with the bytes that were pushed
//   P1 a group that is not complete is shipped or dropped at its deadline, with any number of
//      trainers in between
//   P7 only the hostile producer is put in quarantine
//   P8 a record carries a version that was committed, and not an older one than when it was pushed
//   P9 something moves while it could (progress.hpp)

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "journal.hpp"
#include "rollring/consumer.hpp"
#include "rollring/stat.hpp"

namespace rollring::test {

enum class Role : std::uint8_t { producer, hostile, trainer, publisher, subscriber, count };
std::string_view name(Role role);

struct OracleCounts {
    std::uint64_t begun = 0;
    std::uint64_t pushed = 0;
    std::uint64_t groups_begun = 0;
    std::uint64_t groups_checked = 0;
    std::uint64_t records_checked = 0;
    std::uint64_t long_records = 0;       // a third of a lane and more
    std::uint64_t large_groups = 0;       // a third of the spill and more
    std::uint64_t groups_voided = 0;      // a member failed: never acknowledged
    std::uint64_t groups_unfinished = 0;  // their producer was killed
    std::uint64_t groups_overdue = 0;     // pushed whole, too late to be sure of
    std::uint64_t exposed_damaged = 0;    // groups left in a lane that a hostile one took next
    std::uint64_t exposed_lost = 0;       // likewise
    std::uint64_t copies = 0;             // records sent again with the same attempt
    std::uint64_t retries = 0;            // records of a higher attempt
    std::uint64_t after_ack = 0;          // records of groups that were over
    std::uint64_t recoveries = 0;         // trainers that took over from a killed one
    std::uint64_t cut_done = 0;           // acknowledgements that a kill cut short: valid
    std::uint64_t cut_undone = 0;         // and not
    std::uint64_t producers_died = 0;
    std::uint64_t producers_closed = 0;
    std::uint64_t quarantines = 0;
    std::uint64_t torn = 0;
    std::uint64_t hostile_groups = 0;
    std::uint64_t versions = 0;
    std::uint64_t aborted = 0;
    std::uint64_t live = 0;
    std::uint64_t poisoned = 0;
    std::array<std::uint64_t, static_cast<std::size_t>(DropReason::count)> dropped{};
    std::int64_t longest_open_ns = 0;  // of a group that was not complete, trainers at work
    std::uint64_t refused = 0;
    std::uint64_t waits = 0;
};

class Oracle {
  public:
    void started(std::uint64_t life, Role role, std::uint32_t index);
    void killed(std::uint64_t life);
    // The life that this entry says was taken for dead; 0: it says no such thing.
    static std::uint64_t taken_for_dead(const std::byte* entry);
    void take(const std::byte* entry);
    // Groups that the stash shows as open, seen from outside.
    void still_open(std::span<const GroupStat> groups);
    void finish();  // all have ended

    [[nodiscard]] const OracleCounts& counts() const { return counts_; }
    [[nodiscard]] bool was_hostile(std::uint32_t lane) const {
        return hostile_ever_.contains(lane);
    }

  private:
    struct Copy {
        std::uint64_t digest;
        std::int64_t floor;  // version committed last when it was begun
        std::uint32_t repetition;
        std::uint32_t attempt;
        std::uint16_t subsequence;
        bool early;  // begun before the group could be complete
        bool pushed;
        std::int64_t at_ns;
    };
    struct Group {
        std::uint64_t life = 0;
        std::uint16_t size = 0;
        std::uint16_t subsequences = 0;
        bool could_be_complete = false;
        std::int64_t from_ns = 0;  // begun
        std::int64_t last_ns = 0;  // pushed last
        std::vector<Copy> copies;
    };
    struct Life {
        Role role{};
        std::uint32_t index = 0;
        bool killed = false;
        std::int64_t killed_ns = 0;
        std::int64_t lane = -1;
        std::uint64_t flying = 0;  // group of the record begun last
        std::size_t copy = 0;      // its place there
        bool in_flight = false;    // ... and it is not known to be pushed
        std::int64_t live = -1;
        std::vector<bool> acked;  // by visit
        std::vector<bool> voided;
    };

    static std::uint64_t id_of(std::uint64_t life, std::uint64_t visit) {
        return life << 32 | visit;
    }
    Life& life_of(const Head& head);
    void word(const Word& word);
    void begun(const Begun& entry);
    void pushed(const Head& head);
    void acking(const std::byte* entry);
    void acked(std::int64_t step);
    void resumed(std::int64_t step);
    void event(Event::Kind kind, std::uint32_t lane, std::uint64_t life);
    void live(Life& life, std::int64_t version, bool whole);
    void note_trainer(const Head& head);
    void check_group(const Shipped& shipped, std::span<const Piece> pieces);
    void check_exposed(const Shipped& shipped, std::span<const Piece> pieces);
    [[nodiscard]] bool exposed(std::uint64_t life) const;
    [[nodiscard]] bool were_acked(std::uint64_t id, std::span<const Piece> pieces) const;
    void remember_acked(std::uint64_t id, std::span<const Piece> pieces);
    void check_piece(const Group& group, const Shipped& shipped, const Piece& piece) const;
    [[nodiscard]] static std::uint32_t least_attempt(const Group& group, std::uint32_t repetition);
    [[nodiscard]] static bool must_ship(const Group& group);
    [[nodiscard]] std::string describe(std::uint64_t id, const Group& group) const;
    [[nodiscard]] bool ever_hostile(std::uint32_t lane) const;
    [[nodiscard]] bool hostile_lane(std::uint32_t lane) const;
    [[nodiscard]] std::string holders_of(std::uint32_t lane) const;

    std::vector<Life> lives_;
    std::unordered_map<std::uint64_t, Group> groups_;         // not acknowledged
    static constexpr std::size_t acked_remembered = 200'000;  // groups
    std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> acked_digests_;
    std::deque<std::uint64_t> acked_lately_;
    std::unordered_set<std::uint64_t> hostile_keys_;
    std::map<std::uint32_t, std::vector<std::uint64_t>> holders_;  // of a lane, the last at the end
    std::set<std::uint32_t> hostile_ever_;
    bool pending_ = false;
    std::int64_t pending_step_ = -1;
    std::vector<Shipped> pending_groups_;
    std::vector<Piece> pending_pieces_;
    std::int64_t step_ = -1;
    // How long trainers have been at work so far: neither coming up, stopped, nor out of memory.
    std::int64_t trained_ns_ = 0;
    Head trainer_said_{};
    struct Waiting {
        std::int64_t since_ns;  // of trained_ns_
        std::int64_t seen_ns;
    };
    std::map<std::pair<std::uint64_t, std::uint64_t>, Waiting> open_;  // by key
    std::set<std::int64_t> versions_;                                  // committed, or perhaps
    std::int64_t committed_ = -1;
    std::map<std::uint32_t, std::int64_t> served_;  // by subscriber
    OracleCounts counts_;
};

}  // namespace rollring::test
