#pragma once
// The real thing of the model: a ring in shared memory, a producer for each node's lane as the
// receiver has them, and the stash. Nothing waits; a producer that would is refused and tries once
// more. Memory is smaller by a scale, and so are the records, so that all that is counted in bytes
// is decided as at full size.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rollouts.hpp"
#include "rollring/producer.hpp"
#include "rollring/stash.hpp"
#include "settings.hpp"

namespace bench::scale {

class TrainerRing {
  public:
    TrainerRing(const Settings& settings, std::uint32_t number, std::uint32_t batch_groups);
    TrainerRing(const TrainerRing&) = delete;
    TrainerRing& operator=(const TrainerRing&) = delete;
    ~TrainerRing();

    // A node's lane. It is others' once it is closed and read.
    void close_lane(std::uint32_t node);

    // A place for a group, or none now.
    bool ask(std::uint32_t node, std::uint32_t group);
    // Of the last refusal: it was for memory, not for the number of groups.
    [[nodiscard]] bool room_was_short() const { return room_was_short_; }
    // Places that a node has in advance, under keys of no group.
    [[nodiscard]] std::uint32_t spare(std::uint32_t node) const {
        return static_cast<std::uint32_t>(stand_ins_[node].size());
    }
    [[nodiscard]] bool has_plenty(std::uint32_t node) const;
    bool take_spare(std::uint32_t node);
    void give_spare_back(std::uint32_t node);
    // One of them is the group's of this rollout, if that has none.
    bool pass_spare(std::uint32_t node, std::uint32_t rollout);
    // False: the lane has no room.
    bool push(std::uint32_t node, std::uint32_t rollout, std::uint64_t bytes);

    // Reads the available records; true if there is a batch.
    bool next();
    [[nodiscard]] bool leased() const { return leased_; }
    // Numbers of the rollouts of the batch.
    [[nodiscard]] std::vector<std::uint32_t> batch() const;
    void ack(std::int64_t step);

    [[nodiscard]] std::uint64_t open_groups() const { return stash_->open_groups(); }
    [[nodiscard]] std::uint64_t places() const { return places_; }
    [[nodiscard]] rollring::StashAccount account() const { return stash_->account(); }
    [[nodiscard]] rollring::StashCopies copies() const { return stash_->copies(); }
    // Of lanes and spill, at full size.
    [[nodiscard]] std::uint64_t reserved_bytes() const;
    [[nodiscard]] std::uint64_t scaled_up(std::uint64_t bytes) const { return bytes * scale_; }

  private:
    void open_lanes();
    [[nodiscard]] std::uint64_t resident_bytes() const;

    const Settings* settings_;
    std::string name_;
    std::uint64_t scale_;
    std::uint64_t lane_bytes_;  // of the real one
    std::uint64_t places_ = 0;
    std::uint64_t resident_at_first_bytes_ = 0;
    std::unique_ptr<rollring::Stash> stash_;
    std::vector<std::optional<rollring::Producer>> lanes_;
    std::vector<std::vector<rollring::GroupKey>> stand_ins_;  // by node
    std::uint64_t stand_ins_made_ = 0;
    std::vector<std::int32_t> tokens_;  // of any record
    rollring::Batch batch_;
    bool leased_ = false;
    bool room_was_short_ = false;
};

}  // namespace bench::scale
