#include "record_bound.hpp"

#include <algorithm>
#include <optional>
#include <thread>

#include "fault_point.hpp"
#include "liveness.hpp"

namespace rollring {
namespace {

constexpr std::int64_t turn_ms = 20;  // far longer than the lock is held

}  // namespace

void RecordBound::start(LaneOwner& owner, const ReaderEntry& reader) {
    sent_before_ = peek(owner.records_total);
    store_release(owner.records_claimed, claimed_ = sent_before_);
    store_release(owner.counted_tail, peek(owner.tail));
    // A live consumer may have drained the lane, and not counted that yet.
    const bool drained = observe(reader.cursor) >= peek(owner.tail);
    if (!drained || map_->consumer_alive()) return;
    store_release(owner.records_missed, sent_before_ - observe(reader.released));
}

std::uint64_t RecordBound::count_lane(std::uint32_t lane) const {
    const LaneOwner& owner = map_->owner(lane);
    const ReaderEntry& reader = map_->entry(lane);
    // A damaged lane blocks no producer.
    if (observe(owner.epoch) == 0 || observe(reader.quarantine) != 0) return 0;
    // In this order: `records_total` is stored after the tail that covers them.
    std::uint64_t sent = observe(owner.records_total);
    std::uint64_t claimed = observe(owner.records_claimed);
    const bool sends = claimed > sent && map_->producer_alive(lane);
    if (claimed > sent && !sends) {  // its producer is gone: the counts are final
        sent = observe(owner.records_total);
        if (observe(owner.counted_tail) == observe(owner.tail)) claimed = sent;
    }
    const std::uint64_t cursor = observe(reader.cursor);
    const bool drained = cursor >= observe(owner.tail);
    if (drained && !sends) return 0;
    const auto held = static_cast<std::int64_t>(std::max(sent, claimed) - observe(reader.released) -
                                                observe(owner.records_missed));
    return held > 0 ? static_cast<std::uint64_t>(held) : 1;
}

std::uint64_t RecordBound::count() const {
    std::uint64_t records = 0;
    for (std::uint32_t lane = 0; lane < map_->geometry().lane_count; lane++) {
        records += count_lane(lane);
    }
    return records;
}

bool RecordBound::take_place(std::uint64_t sent, LaneOwner& owner) {
    if (claimed_ > sent_before_ + sent) return true;
    // The fast path, without the lock: while a producer waits, the ring is usually full.
    if (count() >= most_) return false;
    // Without a descriptor, or behind a stopped process that holds the lock, the ring counts as
    // full.
    const Deadline patience = Deadline::after_ms(turn_ms);
    auto turn = LifeLock::take(map_->segment().fd(), LifeByte::counting());
    while (turn && !turn->has_value() && !patience.passed()) {
        std::this_thread::yield();
        turn = LifeLock::take(map_->segment().fd(), LifeByte::counting());
    }
    if (!turn || !turn->has_value()) return false;
    FAULT_POINT("bound.in_turn");
    if (count() >= most_) return false;
    store_release(owner.records_claimed, ++claimed_);
    FAULT_POINT("bound.claimed");
    return true;
}

bool RecordBound::give_back(std::uint64_t sent, LaneOwner& owner) {
    if (claimed_ <= sent_before_ + sent) return false;
    claimed_ = sent_before_ + sent;
    store_release(owner.records_claimed, claimed_);
    return true;
}

}  // namespace rollring
