#pragma once
// The parts of a Producer.

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include "admission.hpp"
#include "liveness.hpp"
#include "pacer.hpp"
#include "record_bound.hpp"
#include "ring_map.hpp"
#include "rollring/producer.hpp"

namespace rollring {

struct Producer::Impl {
    RingMap map;
    ProducerOptions options;
    std::uint32_t lane;
    LifeLock life;
    Mapping owner_page;
    Mapping data;
    std::optional<NativeWriter> writer;
    std::uint64_t generation = fork_generation();
    std::uint32_t epoch = 0;
    std::uint64_t sequence = 0;
    std::uint64_t serial = 0;    // grows with each call that reserves room
    std::int64_t stamp_ns = 0;   // when the last record was committed, to within a kernel tick
    timespec tick{};             // of that clock reading
    std::int64_t looked_ns = 0;  // last check of the ring's name
    bool look_due = true;
    RecordRef last{};  // the last committed record
    ProducerStats stats{};
    ProducerStats shown{};
    std::string problem;
    bool open = true;
    LapCounters laps_before{};
    Pacer pacer;
    std::optional<Admission> admission;
    std::optional<RecordBound> bound;
    GroupKey reserved_key;  // of the record being written
    bool wishes = false;    // the owner page shows a demand
    int users = 1;          // the producer, until it is gone, and its reservations

    // NOLINTNEXTLINE(readability-function-size): the parts of one object
    Impl(RingMap ring, ProducerOptions given, std::uint32_t index, LifeLock lock, Mapping page,
         Mapping bytes)
        : map(std::move(ring)),
          options(std::move(given)),
          lane(index),
          life(std::move(lock)),
          owner_page(std::move(page)),
          data(std::move(bytes)) {}

    [[nodiscard]] LaneOwner& owner() const { return owner_page.at<LaneOwner>(0); }
    [[nodiscard]] bool usable() const { return open && generation == fork_generation(); }

    void start();
    void keep_lane(std::uint64_t kept_for);  // 0: for no producer
    Push check_quarantine();
    Push room(std::uint64_t bytes, Deadline deadline);
    template <class Ask>
    Push wait_for_place(Deadline deadline, Ask may_go);
    Push place(Deadline deadline);
    void give_place_back();
    void ring_all_lanes();
    // `may_choose`: a refused caller may send to another group.
    Push admit(const GroupKey& key, const GroupNeed& need, Deadline deadline, bool may_choose);
    std::uint64_t declare(const GroupPlan& plan);
    void wish(std::uint64_t room_bytes, std::uint64_t place_bytes);
    Push check_ring();
    Push check_name();
    Push check_shown();
    Push wait_for_room(std::uint64_t bytes, Deadline deadline);
    Reserve spin_for_room(std::uint64_t bytes);
    void pace(std::uint64_t record_bytes, Deadline deadline);
    Push refuse(Push push, std::string why);
    Push refuse_closed();
    // `tokens`, `members` of its group: 0 if unknown.
    Push too_large(std::uint64_t bytes, std::uint64_t tokens, std::uint64_t members);
    // `filled_later`: the caller writes columns without data itself.
    Push reserve(const Draft& draft, Deadline deadline, std::span<std::byte>& payload,
                 bool filled_later);
    void commit(std::span<std::byte> payload, std::uint64_t record_bytes);
    void stamp();
    void prefetch_next(std::uint64_t bytes) const;
    void show();
};

}  // namespace rollring
