#pragma once
// Whether a producer may open a new group now. A stash bounds the number of open groups, and the
// bytes that they may come to hold. A producer that sends the first member of another group waits;
// one that sends to an open group never does.
//
//   groups  open at the stash (its count) + announced by producers and not yet read (each lane:
//           groups that its producer announced less those that the consumer has seen)
//                                                                              <  max_open_groups
//   bytes   owed by the stash to open groups + claimed by producers and not yet read, this group's
//           claim included                                                     <= room_bytes
//
// Each number has one writer, so nothing needs repair when one of them dies: the announcements of a
// lane are written off when it is retired. Two producers may both see the last place: the bound on
// groups may be exceeded by one group per producer. The bound on bytes is never exceeded: a claim
// is stored first and counted afterwards, so that of two claims that do not fit together at least
// one sees the other, and is withdrawn.
//
// docs/progress.md defines a claim, and explains why a run cannot stand still.

#include <cstdint>
#include <optional>
#include <vector>

#include "key_table.hpp"
#include "ring_map.hpp"

namespace rollring {

// The known facts about a group before its first record is sent.
struct GroupNeed {
    std::uint32_t members = 0;       // 0: as many as the stash expects
    std::uint64_t record_bytes = 0;  // of the record at hand, or declared; the frame included
    std::uint64_t tokens = 0;        // of the record at hand; 0: not known
};

class Admission {
  public:
    enum class [[nodiscard]] Answer { go, too_many_groups, too_many_bytes, no_room, never_fits };

    explicit Admission(const RingMap& map) : map_(&map), control_(&map.control()) {}

    // Whether producers must ask: a stash reads the ring, has read it, or may still come. A plain
    // consumer lifts the bound.
    [[nodiscard]] bool active() const { return peek(control_->max_open_groups) != 0; }

    // Whether groups are announced of which no record was committed.
    [[nodiscard]] bool owes() const { return !announced_.empty(); }

    // Answers `go` for an open group; otherwise announces the group if there is a place.
    Answer ask(const GroupKey& key, const GroupNeed& need, LaneOwner& owner);
    // The same for a place that a predecessor has taken: announces the group in any case.
    void inherit(const GroupKey& key, const GroupNeed& need, LaneOwner& owner);
    // As `ask`, for a group of which only the need is known, and only while there is plenty: no
    // other producer can use a place that is taken in advance.
    bool take_spare(const GroupKey& key, const GroupNeed& need, LaneOwner& owner);
    [[nodiscard]] bool has_plenty(std::uint32_t lines = 0) const;  // for a claim of this size
    // Turns the announcement of `from` into one of `to`. False, with no effect, if `to` needs no
    // place.
    bool pass(const GroupKey& from, const GroupKey& to);
    // Whether this producer has announced it, and no record of it was committed.
    [[nodiscard]] bool holds(const GroupKey& key) const;
    // Whether the group is open, or this producer has announced it.
    [[nodiscard]] bool knows(const GroupKey& key) {
        return remembers(key) || is_open(key) || holds(key);
    }

    // The announcements up to a record of this group, which is being committed, that one included.
    struct Sent {
        std::uint32_t groups;
        std::uint32_t lines;
    };
    Sent note_sent(const GroupKey& key);
    // Returns the place and the claim of an announced group of which no record was committed. False
    // if there is none.
    bool cancel(const GroupKey& key, LaneOwner& owner);
    // Starts from the consumer's counts for this lane: later announcements of its earlier producers
    // are written off.
    void start(LaneOwner& owner, const ReaderEntry& reader) {
        sent_groups_ = opened_groups_ = peek(reader.groups_arrived);
        sent_lines_ = claimed_lines_ = peek(reader.lines_arrived);
        poke(owner.groups_opened, opened_groups_);
        poke(owner.lines_claimed, claimed_lines_);
    }

    // The assumed final bytes of a group with this need.
    [[nodiscard]] std::uint64_t claim_bytes(const GroupNeed& need) const;

    // For people: why the places are taken.
    [[nodiscard]] std::string why(Answer answer, const GroupNeed& need) const;

  private:
    [[nodiscard]] std::string why_never(const GroupNeed& need) const;
    struct Announced {
        GroupKey key;
        std::uint32_t lines;
    };

    [[nodiscard]] bool remembers(const GroupKey& key) const {
        return !recent_.empty() && recent_[key.low % recent_.size()] == key;
    }
    void remember(const GroupKey& key);
    [[nodiscard]] bool is_open(const GroupKey& key);
    [[nodiscard]] bool counts(std::uint32_t lane) const;
    [[nodiscard]] std::uint64_t room_most() const;
    [[nodiscard]] std::uint64_t announced_groups() const;
    [[nodiscard]] std::uint64_t claimed_bytes() const;
    [[nodiscard]] std::uint64_t members_of(const GroupNeed& need) const;
    [[nodiscard]] std::uint32_t lines_of(const GroupNeed& need) const;
    Answer take_place(std::uint32_t lines, LaneOwner& owner);
    void announce(const GroupKey& key, std::uint32_t lines, LaneOwner& owner);
    [[nodiscard]] bool leaves_room(std::uint32_t lines) const;
    [[nodiscard]] bool fits(std::uint64_t wanted_lines, std::uint64_t claimed_bytes) const;
    bool claim(std::uint64_t lines, std::uint64_t wanted_lines, LaneOwner& owner);

    const RingMap* map_;
    const ReaderControl* control_;
    std::optional<Mapping> keys_;  // mapped with the first question
    std::vector<GroupKey> recent_;
    std::vector<Announced> announced_;  // and not sent yet
    std::uint64_t sent_groups_ = 0;
    std::uint32_t sent_lines_ = 0;
    // Our words in the owner's page; stored again with each claim, because other processes may
    // overwrite them.
    std::uint64_t opened_groups_ = 0;
    std::uint32_t claimed_lines_ = 0;
    // Places and bytes that can be taken without counting again.
    std::uint64_t places_ = 0;
    std::uint64_t spare_lines_ = 0;
};

}  // namespace rollring
