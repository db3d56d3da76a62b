#pragma once
// A ring's pages as one process maps them: writable only where it writes.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "doorbell.hpp"
#include "lane_reader.hpp"
#include "lane_writer.hpp"
#include "orders.hpp"
#include "rollring/schema.hpp"
#include "segment.hpp"

namespace rollring {

// The pages that every participant maps: header to owner pages read-only, the bells writable.
class RingMap {
  public:
    static Result<RingMap> attach(std::string_view name, Deadline deadline,
                                  Access access = Access::read_write);
    // For a producer or consumer: Errc::invalid_argument if the ring's records have another
    // purpose.
    static Result<RingMap> attach_for(Purpose purpose, std::string_view name, Deadline deadline);

    [[nodiscard]] const Segment& segment() const { return segment_; }
    [[nodiscard]] const Geometry& geometry() const { return segment_.geometry(); }
    [[nodiscard]] const Schema& schema() const { return *schema_; }
    [[nodiscard]] std::uint64_t ring_id() const { return segment_.header().ring_id; }

    [[nodiscard]] const PolicyPage& policy() const {
        return fixed_.at<const PolicyPage>(geometry().policy_offset());
    }
    [[nodiscard]] const ReaderControl& control() const {
        return fixed_.at<const ReaderControl>(geometry().reader_offset());
    }
    [[nodiscard]] const SharePage& shares() const {
        return fixed_.at<const SharePage>(geometry().shares_offset());
    }
    [[nodiscard]] const ReaderEntry& entry(std::uint32_t lane) const {
        return fixed_.at<const ReaderEntry>(geometry().entries_offset() +
                                            lane * sizeof(ReaderEntry));
    }
    [[nodiscard]] const LaneOwner& owner(std::uint32_t lane) const {
        return fixed_.at<const LaneOwner>(geometry().owner_offset(lane));
    }
    [[nodiscard]] Bell& consumer_bell() const { return bells_.at<Bell>(0); }
    [[nodiscard]] Bell& lane_bell(std::uint32_t lane) const {
        return bells_.at<Bell>((1 + lane) * sizeof(Bell));
    }

    [[nodiscard]] Bell& share_bell() const { return lane_bell(geometry().lane_count + 1); }

    // The bytes from a lane's start that its records reuse while the consumer keeps up. Touch these
    // pages early: a first touch between records costs both sides a page fault.
    [[nodiscard]] std::uint64_t near_bytes() const {
        constexpr std::uint64_t most = std::uint64_t{8} << 20;
        return std::min(geometry().soft_bytes, most);
    }

    [[nodiscard]] bool consumer_alive() const;
    [[nodiscard]] bool producer_alive(std::uint32_t lane) const;
    // Whether the consumer is done with the lane's last producer, or there was none. The producer's
    // own words decide nothing: it may have damaged its own epoch.
    [[nodiscard]] bool lane_is_idle(std::uint32_t lane) const;
    // Whether a producer can begin in this idle lane, at the consumer's position. If not, the
    // consumer's page was damaged, and the lane stays unused until a consumer has repaired it.
    [[nodiscard]] bool lane_is_sound(std::uint32_t lane) const;

    // True while readers of shares live. Pages must not be given back then: a reader of a stale
    // share would touch a hole, which allocates memory or ends in SIGBUS.
    [[nodiscard]] bool has_share_readers() const;
    // Whether the ring's name was removed, which is final: the first process to find this tells all
    // others, so that both ends stop. `thorough`: looks for the name even if no process has told.
    // The flag alone is not believed while the name exists.
    [[nodiscard]] bool is_removed(bool thorough) const;

  private:
    RingMap(Segment segment, std::unique_ptr<const Schema> schema, Mapping fixed, Mapping bells);
    Segment segment_;
    std::unique_ptr<const Schema> schema_;  // its address stays when the map moves
    Mapping fixed_;
    Mapping bells_;
};

using NativeBell = BellCore<NativePlatform>;
using NativeWriter = LaneWriter<NativePlatform>;
using NativeReader = LaneReader<NativePlatform>;

inline NativeBell bell_of(Bell& bell) {
    return {bell.sequence, bell.waiting};
}

// For a word that other processes only read: restores the value if it was overwritten.
template <class T>
void keep(std::atomic<T>& word, T value) {
    if (peek(word) != value) store_release(word, value);
}

// The age of a timestamp from another process; 0 if it is unset or in the future.
inline std::int64_t age_ns(std::int64_t now_ns, std::int64_t then_ns) {
    return then_ns > 0 && then_ns < now_ns ? now_ns - then_ns : 0;
}

// The second half of showing anything: wakes the waiter if there is one.
inline void ring_bell(Bell& bell) {
    if (NativeBell core = bell_of(bell); core.must_ring()) futex_wake(core.sequence());
}

// The producer's name, fit for display.
std::string load_name(const LaneOwner& owner);
// The name of the producer that had the lane at this epoch, its lane, and whether it is gone:
// "env-3 (lane 2)", "env-3 (lane 2, died)".
std::string load_sender(const RingMap& map, std::uint32_t lane, std::uint32_t epoch);

}  // namespace rollring
