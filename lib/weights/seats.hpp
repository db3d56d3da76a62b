#pragma once
// The subscribers of a publisher, and the slots that they may still be reading. Shared by the
// thread that publishes and the one that admits: every call locks, except ring_all() and
// interrupt().

#include <atomic>
#include <bitset>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "control_map.hpp"
#include "control_socket.hpp"
#include "doorbell.hpp"
#include "publication.hpp"

namespace rollring::weights {

using SeatSet = std::bitset<subscribers_limit>;

struct Seat {
    enum class State { free, joining, joined, expelled };
    State state = State::free;
    std::uint64_t epoch = 0;
    std::string name;
    bool confirmed = false;  // it is attached, at other ranks too
};

// A slot, and its possible readers.
struct Slot {
    std::unique_ptr<SharedBlock> block;
    std::uint64_t publication = 0;  // of the part that it holds; 0: none yet
    std::uint64_t part_number = 0;
    bool filled = true;  // no copy of ours is on its way into it
    SeatSet readers;
};

class Seats {
  public:
    // `spin`: the time before a wait sleeps.
    Seats(const OwnControl& control, std::chrono::nanoseconds spin)
        : control_(&control), spin_(spin) {}

    // --- for the thread that admits ---
    struct SeatId {
        std::uint32_t seat;
        std::uint64_t epoch;
    };
    // busy: the name is taken, or no seat is left.
    Result<SeatId> reserve(const std::string& name);
    // It has mapped everything. It must read the current publication if that can still be read from
    // its start; if it attaches to other ranks, too, not before it has confirmed.
    void join(SeatId id);
    // It is attached, and counts from now on. A subscriber that gave up before never counts, and no
    // version of a sharded trainer notices.
    void confirm(SeatId id);
    // Its connection is closed, or its byte is free: frees its slots.
    void vacate(SeatId id);

    // --- for the thread that publishes ---
    // For a sharded trainer: a reader that ends before it has staged the version counts as `ended`,
    // and the slots of the committed version are filled last. Called before any engine is admitted.
    void keep_together() { together_ = true; }
    // The one slot is the trainer's own memory, which engines read where it lies: the trainer may
    // write to it once all readers have staged the version, or it is over; with keep_together, once
    // is_read(), or it was aborted. From then on no engine becomes a reader, and the slot waits for
    // none that is set aside. Called likewise.
    void read_in_place() { in_place_ = true; }
    // Slots are made before any engine is admitted, and in place of those that are set aside.
    void add_slot(std::unique_ptr<SharedBlock> block);
    [[nodiscard]] std::size_t slot_count();
    // The number of slots that stay usable if the subscriber `without` is expelled.
    [[nodiscard]] std::size_t usable_slots(const std::string& without);
    // A publication was begun: all joined subscribers must read it, or only those that lack the
    // version.
    void open(const Publication& publication, bool only_behind);
    // The slots of the publication, which was aborted, are free at once: engines of a sharded
    // trainer copy from slots only after the commit.
    void free_aborted();
    // The slots of the committed version, in the order of its parts; none if it was read in place.
    [[nodiscard]] std::vector<std::uint32_t> committed_slots();
    // A publication was begun that offers the committed version from these slots, whose parts have
    // new numbers from here on, to all joined subscribers that do not serve it.
    void offer_again(const Publication& publication, std::span<const std::uint32_t> slots,
                     std::uint64_t first_part_number);
    // It is over. `joinable`: a late subscriber may read it while it is in the slots.
    void close(bool joinable);
    // Takes a slot without readers for the part of this number; null if all are being read.
    Slot* take_slot(std::uint64_t part_number, std::uint32_t* index);
    void slot_filled(Slot& slot);
    [[nodiscard]] bool all_filled();
    // Drops dead subscribers, by their byte. Cheap, but not free: 0.25 us a seat.
    void drop_dead();
    bool expel(const std::string& name);
    // Waits on the publisher's bell, or another one, until look() is true, and drops dead
    // subscribers from time to time. False at the deadline, or after interrupt().
    template <class Look>
    bool wait_at(Bell& bell, Deadline deadline, const Look& look,
                 std::chrono::nanoseconds spin_least = {});
    template <class Look>
    bool wait(Deadline deadline, const Look& look, std::chrono::nanoseconds spin_least = {}) {
        return wait_at(control_->bell(ControlOffsets::publisher_bell()), deadline, look,
                       spin_least);
    }

    struct Progress {
        std::uint32_t readers = 0;
        std::uint32_t staged = 0;
        std::string waiting;   // names of those that have not staged
        std::string rejected;  // name and reason of one that cannot take it
        std::string ended;     // name of one that ended before it had staged the version
    };
    // Once all readers have staged a filled version of memory that is read in place, no other one
    // becomes a reader; with keep_together, once it is closed.
    [[nodiscard]] Progress progress(bool with_names);
    // Names of the subscribers that hold slots.
    [[nodiscard]] std::string slot_holders();
    // No subscriber holds a slot.
    [[nodiscard]] bool is_read();
    // Expels the subscribers that hold slots.
    void expel_holders();
    // The subscribers that have confirmed.
    [[nodiscard]] std::uint32_t joined();
    [[nodiscard]] bool empty();
    [[nodiscard]] std::uint32_t live(std::int64_t version);
    [[nodiscard]] std::uint32_t behind(std::int64_t committed);
    [[nodiscard]] std::vector<std::pair<WireTicket, int>> slots_for_wire();

    // Ends the current wait, or the next one; any thread may call it. A wait at another bell sleeps
    // on, for sleep_max_ns at most.
    void interrupt() { interruption_.raise(control_->bell(ControlOffsets::publisher_bell())); }

    // Rings every subscriber. Takes no lock: called from driver threads.
    void ring_all() const;

  private:
    [[nodiscard]] const SubscriberPage* page(std::uint32_t seat) const;
    [[nodiscard]] bool passed(std::uint32_t seat, const Slot& slot) const;
    // Whether versions are for it.
    [[nodiscard]] bool takes_part(std::uint32_t seat) const;
    void let_read(std::uint32_t seat);
    // Of a sharded trainer: those whose word is here before their message.
    void confirm_attached();
    void free_seat(std::uint32_t seat);
    void keep_rejection(std::uint32_t seat);
    void note_ended(std::uint32_t seat);
    void free_dead();
    // No longer waited for; its slots are kept for it until it is gone.
    void set_aside(std::uint32_t seat);
    [[nodiscard]] bool lacks(std::uint32_t seat, std::int64_t committed) const;
    [[nodiscard]] bool still_whole() const;
    [[nodiscard]] bool holds_slot(std::uint32_t seat) const;
    [[nodiscard]] bool keeps_committed(const Slot& slot) const {
        return !in_place_ && committed_ != 0 && slot.publication == committed_;
    }
    // Readers that have not staged the version, which was decided without them.
    void turn_away_late();

    const OwnControl* control_;
    std::chrono::nanoseconds spin_;
    Interruption interruption_;
    std::int64_t looked_ns_ = 0;  // for dead ones, across waits that may be short
    bool together_ = false;
    bool in_place_ = false;
    std::mutex mutex_;
    bool open_ = false;            // the publication
    std::uint64_t committed_ = 0;  // the publication with the committed version; 0: none
    std::string ended_;
    std::vector<Seat> seats_;
    std::atomic<std::uint32_t> seats_used_ = 0;  // seats below it were taken before
    std::vector<std::unique_ptr<Slot>> slots_;
    std::uint64_t epoch_ = 0;
    std::uint64_t publication_ = 0;
    std::int64_t version_ = -1;
    std::uint64_t first_part_number_ = 0;
    std::uint64_t next_part_number_ = 0;
    bool joinable_ = false;  // the current publication is open or committed
    SeatSet readers_;        // of the current publication
    std::string rejected_;   // the one that rejected it and left, with its reason
};

template <class Look>
bool Seats::wait_at(Bell& bell, Deadline deadline, const Look& look,
                    std::chrono::nanoseconds spin_least) {
    constexpr std::int64_t between_ns = 50'000'000;
    bool interrupted = false;
    const bool ended = wait_plain(bell, std::max(spin_, spin_least), deadline, [&] {
        if (look()) return true;
        if (const std::int64_t now = monotonic_ns(); now - looked_ns_ > between_ns) {
            looked_ns_ = now;
            drop_dead();
            if (look()) return true;
        }
        return interrupted = interruption_.take();
    });
    return ended && !interrupted;
}

}  // namespace rollring::weights
