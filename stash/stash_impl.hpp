#pragma once
// What a Stash is made of: the machine (stash/groups/) between a consumer and the trainer, what it
// shows of itself in the ring, and where it puts stragglers.

#include <array>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "consumer_impl.hpp"
#include "group_board.hpp"
#include "group_room.hpp"
#include "group_stash.hpp"
#include "repeat_watch.hpp"
#include "rollring/stash.hpp"
#include "slab.hpp"

namespace rollring {

struct Stash::Impl {
    Consumer consumer;
    StashOptions options;
    GroupStash groups;
    std::optional<GroupBoard> board;
    GroupRoom room;
    std::uint64_t max_open_groups = 0;
    // Each record that is held, with its view as it was checked when it came: a batch shows that,
    // not what has become of the header since. The machine knows them by their places.
    Slab<Record> held;
    // What a record of a few columns fills of its place. With thousands of them the places are out
    // of cache when a record comes, and again when it is shipped.
    static constexpr std::size_t record_bytes_used = 448;
    static_assert(record_bytes_used <= sizeof(Record));
    BatchPlan plan;
    RepeatWatch repeats;
    std::deque<Event> events;
    std::set<std::pair<std::uint32_t, std::uint32_t>> orphans;  // (lane, epoch) of the dead
    std::int64_t ticked_ns = 0;
    std::int64_t came_ns = 0;   // when a record came last
    std::int64_t noted_ns = 0;  // when the lanes' tails were noted
    std::int64_t moved_ns = 0;  // when a record was moved, or a batch given back
    std::int64_t woke_ns = 0;   // when producers that wait to open a group were told to look
    bool room_grew = false;     // since then
    std::uint64_t batches_short = 0;
    std::uint64_t copied_before = 0;
    std::uint64_t evacuated_before = 0;
    bool polled = false;
    bool spill_read = false;  // what a predecessor left there, which is read first
    bool caught_up = false;   // all that was there when it came has been read
    std::vector<std::shared_ptr<Lease::State>> leases;  // of the batches that are out
    std::uint64_t inherited_groups = 0;  // open at a predecessor, and not all read again yet

    Impl(Consumer reader, const StashOptions& given);
    ~Impl();

    struct Waiting {
        std::uint32_t place;  // in `held`
        GroupStash::Slot slot;
    };
    static constexpr int records_at_once = 16;  // whose cache misses overlap
    std::array<Waiting, records_at_once> at_hand;

    [[nodiscard]] Consumer::Impl& ring() const { return *consumer.impl_; }
    Result<void> start();
    // Ends all leases and gives the seat back. The memory stays as long as a lease has it.
    void close();
    static Impl& of(const Lease::State& lease) { return *static_cast<Impl*>(lease.stash.get()); }
    void end_lease(const std::shared_ptr<Lease::State>& lease);
    std::span<Waiting> read_some(Poll& got);
    Poll turn(std::int64_t now_ns);
    void admit(const Waiting& waiting, std::int64_t now_ns);
    void settle_orphans(std::int64_t now_ns);
    // Something moves: what was let in on top is settled.
    void note_came(std::int64_t now_ns) {
        came_ns = now_ns;
        room.widen(0);
        standing.all = false;
    }
    void show_admitted(std::int64_t now_ns);
    // What the machine has changed is shown outside, and what it dropped is released.
    void settle_changes(std::int64_t now_ns);
    void release_dropped();
    // True if something was done.
    bool tick(std::int64_t now_ns);
    void keep_deadlines(std::int64_t now_ns);
    void hear_events(std::int64_t now_ns);
    void lease(Batch& batch, Stash& stash);
    void show_touched(std::int64_t now_ns, bool buried = false);
    void publish_account(bool room_changed);
    void publish_room();
    void publish_open_groups();
    void show_bounds();
    void wake_openers();
    [[nodiscard]] Result<std::uint64_t> settle(std::string_view receipt, std::int64_t step);

    // relief.cpp
    enum class Move { moved, stays, no_room };  // stays: leased, or damaged
    struct Waits {
        std::uint32_t producers = 0;
        std::uint32_t for_room = 0;
        std::uint32_t for_place = 0;
        std::uint32_t room_lane = 0;
        std::uint64_t room_bytes = 0;                   // of one that waits for room
        std::uint64_t place_bytes = ~std::uint64_t{0};  // the least that a group needs
        std::uint64_t tails = 0;  // of all lanes with their wishes: changes when one moves
        [[nodiscard]] bool any() const { return for_room + for_place != 0; }
        [[nodiscard]] bool all() const {
            return producers != 0 && for_room + for_place == producers;
        }
    };
    struct Standing {
        std::uint64_t tails = 0;
        std::int64_t since_ns = 0;
        std::int64_t told_ns = 0;
        bool all = false;        // every producer waited when it was looked at last
        bool impatient = false;  // nothing came for long; until a batch is complete again
    };
    Standing standing;

    bool relieve(bool asked, std::int64_t now_ns);
    bool evacuate_oldest(LaneFeed& feed, std::int64_t now_ns);
    bool compact(LaneFeed& own, std::uint64_t dead_bytes_kept);
    Move move_oldest(LaneFeed& feed);
    [[nodiscard]] bool straggles(const LaneFeed& feed) const;
    [[nodiscard]] bool holds_dead_bytes(const LaneFeed& feed) const;
    [[nodiscard]] Waits who_waits() const;
    [[nodiscard]] bool stuck(const Waits& waits, std::int64_t now_ns) const;
    [[nodiscard]] bool stands_still(const Waits& waits, std::int64_t now_ns) const;
    void let_go(const Waits& waits, std::int64_t now_ns);
    void tell_stall(const Waits& waits, std::int64_t now_ns);
    [[nodiscard]] std::string oldest_groups(std::int64_t now_ns) const;
    void grow_room(std::int64_t now_ns);
};

}  // namespace rollring
