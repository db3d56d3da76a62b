#include "record_bound.hpp"

#include <algorithm>
#include <optional>
#include <thread>

#include "fault_point.hpp"
#include "liveness.hpp"

namespace rollring {
namespace {

constexpr std::int64_t turn_ms = 20;  // many times what a turn takes

}  // namespace

std::uint64_t RecordBound::count_lane(std::uint32_t lane) const {
    const LaneOwner& owner = map_->owner(lane);
    const ReaderEntry& reader = map_->entry(lane);
    // A damaged lane holds nobody up.
    if (observe(owner.epoch) == 0 || observe(reader.quarantine) != 0) return 0;
    // In this order: `records` is stored after the tail that covers them.
    const std::uint64_t sent = observe(owner.records);
    const std::uint64_t cursor = observe(reader.cursor);
    const bool drained = cursor >= observe(owner.tail);
    const std::uint64_t claimed = peek(owner.records_claimed);
    const bool sends = claimed > sent && map_->producer_alive(lane);
    if (drained && !sends) return 0;
    const std::uint64_t released = observe(reader.released) - peek(owner.released_before);
    const std::uint64_t taken = sends ? claimed : sent;
    return taken > released ? taken - released : 1;
}

std::uint64_t RecordBound::count() const {
    std::uint64_t records = 0;
    for (std::uint32_t lane = 0; lane < map_->geometry().lane_count; lane++) {
        records += count_lane(lane);
    }
    return records;
}

bool RecordBound::take_place(std::uint64_t sent, LaneOwner& owner) {
    if (claimed_ > sent) return true;
    // Full as a rule, when somebody waits: told without the turn.
    if (count() >= most_) return false;
    // Short of descriptors, or behind one who was stopped in his turn: as if it was full.
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
    if (claimed_ <= sent) return false;
    claimed_ = sent;
    store_release(owner.records_claimed, claimed_);
    return true;
}

}  // namespace rollring
