#pragma once
// What a Consumer is made of: watch.cpp looks after producers, consumer.cpp delivers and releases.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "handed.hpp"
#include "journal.hpp"
#include "lane_feed.hpp"
#include "liveness.hpp"
#include "overflow.hpp"
#include "ring_map.hpp"
#include "rollring/consumer.hpp"
#include "spill.hpp"

namespace rollring {

inline constexpr std::uint64_t turn_bytes = 64 << 10;  // what a lane may deliver before the next

struct Consumer::Impl {
    RingMap map;
    ConsumerOptions options;
    LifeLock life;
    Mapping all;                       // the whole ring, read-only, the overflow file in its place
    std::optional<Overflow> overflow;  // what the spill has beyond its memory, if the ring has it
    Mapping reader_pages;              // ours to write
    std::uint64_t generation = fork_generation();
    bool open = true;                            // until the seat is given back
    std::vector<std::optional<LaneFeed>> feeds;  // by lane, the spill last; stays for what is held
    std::optional<Spill> spill;                  // opened by a stash
    bool asks_nobody = false;    // no stash: producers need not ask before they open a group
    bool counts_groups = false;  // a stash: publishes groups once it has counted them as open
    // What is in the hands of whoever polls: the newest, and what came before them, by lane. With a
    // stash it is that which knows.
    NewestHanded newest;
    std::vector<std::optional<Handed>> handed;
    std::vector<bool> refused;          // lanes whose failure to open has been told
    std::vector<std::uint32_t> active;  // lanes to poll
    // Of `all`: lanes' near parts that are not in the page table yet. Mapped while nothing arrives,
    // a little at a time, for what arrives meanwhile waits.
    std::vector<Span> untouched;
    bool barriers = false;  // producers may leave the fence to us
    bool forsaken = false;  // the ring was removed and nothing can come
    std::size_t turn = 0;
    std::uint64_t turn_left = turn_bytes;
    std::uint32_t arrivals_seen = 0;
    std::uint32_t polls = 0;
    std::int64_t looked_ns = 0;
    std::int64_t look_gap_ns = 1;  // to the next look while nothing arrives
    std::size_t look_turn = 0;     // of the active lanes
    std::int64_t looked_everywhere_ns = 0;
    std::deque<Event> events;
    ConsumerStats stats{};
    ConsumerStats before{};  // counters in the segment when we came
    std::uint64_t quarantines = 0;
    std::int64_t last_step = -1;  // that was acknowledged: ours to know, whatever the page says

    Impl(RingMap ring, const ConsumerOptions& given, LifeLock lock, Mapping everything,
         std::optional<Overflow> beyond, Mapping own)
        : map(std::move(ring)),
          options(given),
          life(std::move(lock)),
          all(std::move(everything)),
          overflow(std::move(beyond)),
          reader_pages(std::move(own)),
          feeds(map.geometry().lane_count + 1),
          handed(map.geometry().lane_count + 1),
          refused(map.geometry().lane_count + 1) {}

    [[nodiscard]] ReaderControl& control() const { return reader_pages.at<ReaderControl>(0); }
    [[nodiscard]] bool usable() const { return open && generation == fork_generation(); }
    // Errc::forked in a forked child.
    [[nodiscard]] Result<void> check_usable() const;
    // A step that is to be stored: not lower than the last.
    [[nodiscard]] Result<void> check_step(std::int64_t step) const;
    [[nodiscard]] std::string problem() const;
    // Gives the seat back.
    void close();
    [[nodiscard]] Journal<NativePlatform> journal() const;

    Result<void> start();
    Result<void> recover();
    // Groups that end with the journal's entry are over once it is committed, and must be before it
    // is settled: a successor could not tell any more.
    void commit_graves() const {
        const std::uint64_t graves = peek(control().journal_graves);
        if (graves != 0) publish(control().graves, graves);
    }
    // Of a record that is held.
    void release(const RecordRef& record);
    // `delivered`: to us; a settled receipt names records that only a predecessor has seen.
    Result<void> release_all(std::span<const RecordRef> records, std::int64_t step, bool delivered);
    // Behind the frame of a record.
    [[nodiscard]] const std::byte* payload(const RecordRef& record) const {
        const Geometry& geometry = map.geometry();
        return all.data() + geometry.data_offset(record.lane) +
               record.position % geometry.capacity(record.lane) + line_bytes;
    }
    // Groups that the lanes announced and whose records we have read are not announced any more.
    void publish_groups();
    [[nodiscard]] Overflow* overflow_file() { return overflow ? &*overflow : nullptr; }
    Result<void> open_spill();
    // Moves the oldest unreleased record of a lane, which must be `from`, to the spill.
    std::optional<RecordRef> evacuate(const RecordRef& from, const Frame& frame);
    // Bytes of everything delivered and not released.
    [[nodiscard]] std::uint64_t held_bytes() const;
    // Whether all has been read that was committed when the tails were noted.
    void note_tails() {
        for (const std::uint32_t lane : active) feeds[lane]->note_tail();
    }
    [[nodiscard]] bool noted_was_read(bool patient) const {
        return std::ranges::all_of(
            active, [&](std::uint32_t lane) { return feeds[lane]->noted_was_read(patient); });
    }
    void look_around();
    Result<void> open_lane(std::uint32_t lane, bool all_ours);
    void look_at_some();
    bool retire_if_ended(std::uint32_t lane);
    [[nodiscard]] bool is_forsaken() const;
    void greet(std::uint32_t lane);
    void touch_some();
    void tell(Event event);
    Poll poll(Record& record);
    void count(const Record& record);
    [[nodiscard]] bool in_hand(const RecordRef& record);
    [[nodiscard]] bool take_from_hand(const RecordRef& record) {
        return newest.take(record) || take_older(record);
    }
    [[nodiscard]] bool take_older(const RecordRef& record);
    void remember_in_hand(const RecordRef& record);
    void remember_newest();
    [[nodiscard]] ConsumerStats totals() const;
};

}  // namespace rollring
