#pragma once
// One turn of the machine (stash/groups/), and the only way to change it. A turn shows its changes
// in the ring when it ends, on every path out of it, in the one order that survives a kill between
// two stores:
//
//   1. the rows and the tombstones of the groups that changed
//   2. after reading, how many groups are open and what they are owed; only then do their claims
//      arrive, so that each group counts on one side at every moment
//   3. the records of dropped groups leave, whose tombstones step 1 has written; the ring's ledger
//      gets those that were read and stay
//   4. the account, if it was asked for, which also wakes the producers that wait for room

#include <cstdint>
#include <optional>

#include "stash_impl.hpp"

namespace rollring {

class Stash::Impl::Turn {
  public:
    enum class Kind { changes, reads };

    explicit Turn(Impl& impl, std::int64_t now_ns, Kind kind = Kind::changes)
        : impl_(&impl), now_ns_(now_ns), kind_(kind) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();

    [[nodiscard]] GroupStash& groups() { return impl_->machine_; }
    [[nodiscard]] std::int64_t now_ns() const { return now_ns_; }

    // Adds step 4 to the end.
    void shows_account(bool room_changed) { room_changed_ = room_changed; }
    // The tombstones of groups that end here were written before (ShownStash::prepare_tombstones).
    void has_tombstones() { has_tombstones_ = true; }

    // Step 1 at once, for changes that must be visible before the turn goes on.
    void show_groups();
    // Steps 1 and 3 at once.
    void finish_changes();

  private:
    void show_admitted();
    void release_dropped();

    Impl* impl_;
    std::int64_t now_ns_;
    Kind kind_;
    bool has_tombstones_ = false;
    std::optional<bool> room_changed_;  // none: the account is not shown
};

}  // namespace rollring
