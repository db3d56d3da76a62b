#pragma once
// The subscribers that are attached to a publisher, and the slots that they may still be reading.
// Shared by the thread that publishes and the one that admits: every call locks.

#include <atomic>
#include <bitset>
#include <mutex>
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
    bool confirmed = false;  // it knows that it has joined, and stays
};

// A slot, and the subscribers that may be reading it.
struct Slot {
    std::unique_ptr<SharedBlock> block;
    std::uint64_t publication = 0;  // whose part it holds; 0: none yet
    std::uint64_t part_number = 0;
    bool filled = true;  // nothing of ours is on its way into it
    SeatSet readers;
};

class Seats {
  public:
    // `spin`: before a wait sleeps.
    Seats(const OwnControl& control, std::chrono::nanoseconds spin)
        : control_(&control), spin_(spin) {}

    // --- for the thread that admits ---
    struct SeatId {
        std::uint32_t seat;
        std::uint64_t epoch;
    };
    // busy: name taken, or no seat left.
    Result<SeatId> reserve(const std::string& name);
    // It has mapped everything. It is to read the current publication, if that can still be read
    // from its start.
    void join(SeatId id);
    // It knows that, and counts from now on. One that gave up waiting before never counts.
    void confirm(SeatId id);
    // Its connection is closed, or its byte is free. Its slots are free again.
    void vacate(SeatId id);

    // --- for the thread that publishes ---
    // Slots are made before anyone is admitted, and where some are set aside.
    void add_slot(std::unique_ptr<SharedBlock> block);
    [[nodiscard]] std::size_t slot_count();
    // Slots that no expelled subscriber can pin.
    [[nodiscard]] std::size_t usable_slots(const std::string& without);
    // A publication was begun: all that are joined are to read it, or those that lack the version.
    void open(const Publication& publication, bool only_behind);
    // It is over. `joinable`: late subscribers may read it while it lies in the slots.
    void close(bool joinable);
    // A slot without readers, taken for the part of that number; none if all are being read.
    Slot* take_slot(std::uint64_t part_number, std::uint32_t* index);
    void slot_filled(Slot& slot);
    [[nodiscard]] bool all_filled();
    // Drops the dead, by their byte. Cheap, but not free: 0.25 us a seat.
    void drop_dead();
    bool expel(const std::string& name);
    // Waits on the publisher's bell, or another one, until look() is true; drops the dead now and
    // then meanwhile. False at the deadline, or after interrupt().
    template <class Look>
    bool wait_at(Bell& bell, Deadline deadline, const Look& look);
    template <class Look>
    bool wait(Deadline deadline, const Look& look) {
        return wait_at(control_->bell(ControlOffsets::publisher_bell()), deadline, look);
    }

    struct Progress {
        std::uint32_t readers = 0;
        std::uint32_t staged = 0;
        std::string waiting;   // names of those who have not staged
        std::string rejected;  // name and reason of one that cannot take it
    };
    [[nodiscard]] Progress progress(bool with_names);
    // Names of those who hold slots.
    [[nodiscard]] std::string slot_holders();
    // Those that confirmed it.
    [[nodiscard]] std::uint32_t joined();
    [[nodiscard]] bool empty();
    [[nodiscard]] std::uint32_t live(std::int64_t version);
    [[nodiscard]] std::uint32_t behind(std::int64_t committed);
    [[nodiscard]] std::vector<std::pair<WireTicket, int>> slots_for_wire();

    // From any thread: the wait under way, or else the next one. At another bell it sleeps on, for
    // sleep_max_ns at the most.
    void interrupt() { interruption_.raise(control_->bell(ControlOffsets::publisher_bell())); }

    // Rings every subscriber. Takes no lock: called from driver threads.
    void ring_all() const;

  private:
    [[nodiscard]] const SubscriberPage* page(std::uint32_t seat) const;
    [[nodiscard]] bool passed(std::uint32_t seat, const Slot& slot) const;
    void free_seat(std::uint32_t seat);
    void keep_rejection(std::uint32_t seat);
    void free_dead();
    // Not waited for any more; its slots are kept for it until it is gone.
    void set_aside(std::uint32_t seat);
    [[nodiscard]] bool lacks(std::uint32_t seat, std::int64_t committed) const;
    [[nodiscard]] bool still_whole() const;

    const OwnControl* control_;
    std::chrono::nanoseconds spin_;
    Interruption interruption_;
    std::int64_t looked_ns_ = 0;  // for the dead, in a wait: one may be too short for that
    std::mutex mutex_;
    std::vector<Seat> seats_;
    std::atomic<std::uint32_t> seats_used_ = 0;  // seats below it were taken at some time
    std::vector<std::unique_ptr<Slot>> slots_;
    std::uint64_t epoch_ = 0;
    std::uint64_t publication_ = 0;
    std::int64_t version_ = -1;
    std::uint64_t first_part_number_ = 0;
    std::uint64_t next_part_number_ = 0;
    bool joinable_ = false;  // the current publication is open or committed
    SeatSet readers_;        // of the current publication
    std::string rejected_;   // a subscriber that rejected the current one and left, and its reason
};

template <class Look>
bool Seats::wait_at(Bell& bell, Deadline deadline, const Look& look) {
    constexpr std::int64_t between_ns = 50'000'000;
    bool interrupted = false;
    const bool ended = wait_plain(bell, spin_, deadline, [&] {
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
