#pragma once
// The producers of a ring as its consumer sees them: a feed for each lane that has one, the turn
// among lanes, and the events of producers that join or end.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "event_queue.hpp"
#include "lane_feed.hpp"
#include "read_pace.hpp"
#include "reader_seat.hpp"

namespace rollring {

class ProducerRoster {
  public:
    // The seat must outlive this object.
    explicit ProducerRoster(const ReaderSeat& seat)
        : seat_(&seat),
          feeds_(seat.map().geometry().lane_count + 1),
          refused_(seat.map().geometry().lane_count + 1),
          pace_(seat.control()) {}

    // Takes over every lane that holds something or has a producer; the spill first.
    Result<void> take_over();
    // `all_ours`: see LaneFeed::open.
    Result<void> open_lane(std::uint32_t lane, bool all_ours);

    // Ordered by lane, the spill last. The feed of a retired producer stays, because records of the
    // lane may be held.
    [[nodiscard]] std::span<const std::optional<LaneFeed>> feeds() const { return feeds_; }
    [[nodiscard]] bool has(std::uint32_t lane) const {
        return lane < feeds_.size() && feeds_[lane].has_value();
    }
    [[nodiscard]] LaneFeed& feed(std::uint32_t lane) { return *feeds_[lane]; }
    [[nodiscard]] const LaneFeed& feed(std::uint32_t lane) const { return *feeds_[lane]; }
    // Lanes to poll.
    [[nodiscard]] std::span<const std::uint32_t> active() const { return active_; }
    // The number of lanes with a producer.
    [[nodiscard]] std::uint32_t producers() const;

    // The active lane whose turn it is.
    [[nodiscard]] LaneFeed& at_turn() { return *feeds_[active_[turn_]]; }
    void next_turn() {
        if (turn_left_ != turn_bytes) pace_.end_turn(turn_bytes - turn_left_);
        turn_left_ = turn_bytes;
        if (++turn_ < active_.size()) return;
        turn_ = 0;
        pace_.end_round();
    }
    // The lane at turn has delivered this much: turns are measured in bytes.
    void delivered(std::uint64_t bytes) {
        turn_left_ -= static_cast<std::int64_t>(bytes);
        if (turn_left_ <= 0) next_turn();
    }

    // Called with each poll: finds new and dead producers if the bell has changed or it is time.
    void look_if_due() {
        const bool changed = seat_->map().consumer_bell().lane_changes.load() != changes_seen_;
        const bool due =
            ++polls_ % polls_per_clock == 0 && monotonic_ns() - looked_ns_ > look_busy_ns;
        if (changed || due) look_around();
    }
    // Called with each poll that finds nothing.
    void look_while_idle() {
        if (!untouched_.empty()) touch_some();
        if (monotonic_ns() - looked_ns_ > look_gap_ns_) look_at_some();
    }
    // The number of looks at all active lanes.
    [[nodiscard]] std::uint64_t looks() const { return looks_; }
    // The ring was removed, and no record can come any more.
    [[nodiscard]] bool forsaken() const { return forsaken_; }

    // Notes each lane's tail.
    void note_tails() {
        for (const std::uint32_t lane : active_) feeds_[lane]->note_tail();
    }
    // Whether all records below the noted tails were read; `patient`: also those of blocked lanes.
    [[nodiscard]] bool noted_was_read(bool patient) const {
        return std::ranges::all_of(
            active_, [&](std::uint32_t lane) { return feeds_[lane]->noted_was_read(patient); });
    }
    // Groups whose records were read no longer count as announced.
    void tell_claims() {
        for (const std::uint32_t lane : active_) feeds_[lane]->claims().tell();
    }
    // Wakes all producers, to check again whether they may continue.
    void ring_all() const {
        for (const std::uint32_t lane : active_) ring_bell(seat_->map().lane_bell(lane));
    }
    // The same if a producer waits for a place.
    void ring_openers() const {
        std::atomic<std::uint32_t>& openers = seat_->map().consumer_bell().openers;
        if (openers.load() == 0) return;
        openers.store(0);
        ring_all();
    }
    // The bytes of all delivered, unreleased records.
    [[nodiscard]] std::uint64_t held_bytes() const;

    void tell(Event event);
    [[nodiscard]] EventQueue& events() { return events_; }
    // Adds the counts about producers since this object was made.
    void add_to(ConsumerStats& stats) const {
        stats.producers_joined += joined_;
        stats.quarantines += quarantines_;
        stats.events_missed += events_.missed();
    }

  private:
    static constexpr std::int64_t turn_bytes = 64 << 10;      // of a lane, before the next
    static constexpr std::int64_t look_busy_ns = 50'000'000;  // between looks under traffic
    static constexpr std::uint32_t polls_per_clock = 256;

    void look_around();
    void look_at_some();
    bool retire_if_ended(std::uint32_t lane);
    [[nodiscard]] bool is_forsaken() const;
    void greet(std::uint32_t lane);
    void touch_some();

    [[nodiscard]] const RingMap& map() const { return seat_->map(); }

    const ReaderSeat* seat_;
    std::vector<std::optional<LaneFeed>> feeds_;
    std::vector<bool> refused_;  // lanes whose failure to open was reported
    std::vector<std::uint32_t> active_;
    ReadPace pace_;
    std::size_t turn_ = 0;
    std::int64_t turn_left_ = turn_bytes;  // negative: a record was longer
    // Parts of the ring, near the start of lanes, that are not in the page table yet. They are
    // mapped while nothing arrives, a little at a time, because a record that arrives meanwhile
    // waits.
    std::vector<Span> untouched_;
    std::uint32_t changes_seen_ = 0;
    std::uint32_t polls_ = 0;
    std::uint64_t looks_ = 0;
    std::int64_t looked_ns_ = 0;
    std::int64_t look_gap_ns_ = 1;  // to the next look while nothing arrives
    std::size_t look_turn_ = 0;     // index into the active lanes
    std::int64_t looked_everywhere_ns_ = 0;
    bool removed_ = false;  // as of the last look
    bool forsaken_ = false;
    EventQueue events_;
    std::uint64_t joined_ = 0;
    std::uint64_t quarantines_ = 0;
};

}  // namespace rollring
