#pragma once
// Whether a producer may open a new group now. A stash bounds the groups that are open; whoever
// sends the first member of one more waits, whoever sends to a group that is open never does.
//
//   open at the stash (its count) + announced by producers and not yet read (each lane: groups that
//   its producer announced less those that the consumer has seen)  <  max_open_groups
//
// Each number has one writer, so nothing needs repair when one of them dies: a lane's announced
// groups are settled when it is retired. Two producers may both see the last place: the bound may
// be passed by one group per producer.

#include <cstdint>
#include <optional>
#include <vector>

#include "key_table.hpp"
#include "ring_map.hpp"

namespace rollring {

class Admission {
  public:
    enum class [[nodiscard]] Answer { go, too_many_groups, too_many_bytes };

    explicit Admission(const RingMap& map) : map_(&map), control_(&map.control()) {}

    // A stash is there, and wants to be asked.
    [[nodiscard]] bool active() const { return peek(control_->max_open_groups) != 0; }

    // Groups were announced of which no record was committed yet.
    [[nodiscard]] bool owes() const { return !announced_.empty(); }

    // `go` for a group that is open already; otherwise, if there is a place, announces it.
    Answer ask(const GroupKey& key, LaneOwner& owner);
    // A record of this group is being committed. Returns how many announced groups have been sent.
    std::uint64_t note_sent(const GroupKey& key);
    // Starts from what the lane's earlier producers have announced; those are settled.
    void start(const LaneOwner& owner) { sent_ = peek(owner.groups_opened); }

    // For people: who holds the places.
    [[nodiscard]] std::string why(Answer answer) const;

  private:
    [[nodiscard]] bool remembers(const GroupKey& key) const {
        return !recent_.empty() && recent_[key.low % recent_.size()] == key;
    }
    void remember(const GroupKey& key);
    [[nodiscard]] bool is_open(const GroupKey& key);
    [[nodiscard]] std::uint64_t announced_groups() const;
    [[nodiscard]] bool has_place();

    const RingMap* map_;
    const ReaderControl* control_;
    std::optional<Mapping> keys_;  // mapped with the first question
    std::vector<GroupKey> recent_;
    std::vector<GroupKey> announced_;  // and not sent yet
    std::uint64_t sent_ = 0;
    std::uint64_t places_ = 0;  // that we may take without counting again
};

}  // namespace rollring
