#pragma once
// Whether what a batch has lent still holds: for bindings, whose arrays may be kept for longer than
// the batch that they show.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "rollring/export.hpp"

namespace rollring {

class Batch;
class Sequences;

namespace detail {
ROLLRING_API extern std::uint64_t
    forks;  // of this process and its ancestors: grows in each forked child
}

// Memory of one lane of a ring, as this process has it mapped.
struct MappedLane {
    const std::byte* data;
    std::uint64_t bytes;
    std::uint64_t generation;  // another one once its pages were given back to the system
    bool used;                 // by a producer
};

// The lanes of a ring that is mapped here, in the order of their addresses: for who registers them
// with a device. May be asked from any thread.
class ROLLRING_API MappedLanes {
  public:
    MappedLanes() = default;
    MappedLanes(const MappedLanes&) = delete;
    MappedLanes& operator=(const MappedLanes&) = delete;
    virtual ~MappedLanes() = default;
    [[nodiscard]] virtual std::size_t count() const = 0;
    [[nodiscard]] virtual MappedLane lane(std::size_t number) const = 0;
};

// One lease of one batch, or of a share of one (reader.hpp). Cheap to copy; may outlive its Batch
// and its Stash. As long as one lives, the memory under the batch's views stays mapped, but once it
// does not hold, the bytes there may be another record's.
class Lease {
  public:
    Lease() = default;

    // False after the batch's ack() or nack(), when its stash is gone, and in a forked child; of a
    // share, after its close(). May be asked from any thread.
    [[nodiscard]] bool holds() const {
        return state_ != nullptr && state_->leased.load() && state_->forks == detail::forks;
    }
    // Another one for each lease of this process; 0: none.
    [[nodiscard]] std::uint64_t id() const { return state_ == nullptr ? 0 : state_->id; }
    // Where the views lie; stays mapped while it is kept. Null where there is no lease.
    [[nodiscard]] std::shared_ptr<const MappedLanes> lanes() const {
        return state_ == nullptr ? nullptr : state_->lanes;
    }

  private:
    friend class Stash;
    friend class Batch;
    friend class LeaseBook;
    friend class Sequences;
    friend class Share;
    struct State {
        std::uint64_t id;
        std::uint64_t forks;
        std::shared_ptr<void> stash;
        Batch* batch;  // where it is now; null: of a share
        std::shared_ptr<const MappedLanes> lanes;
        std::atomic<bool> leased{true};
    };
    std::shared_ptr<State> state_;
};

}  // namespace rollring
