#include "rollring/tap.hpp"

#include <fmt/core.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checked_frame.hpp"
#include "lane_bytes.hpp"
#include "rollring/ring.hpp"
#include "seen_records.hpp"
#include "tap_place.hpp"

namespace rollring {

struct Tap::Impl {
    Impl(RingMap ring, std::uint64_t most, std::optional<OverflowFile> overflow)
        : map(std::move(ring)),
          round_bytes(most),
          file(std::move(overflow)),
          places(map.geometry().lane_count + 1),
          seen(map.geometry().lane_count) {
        begin_round();  // for the places: records are missed from here on
        in_round = false;
        stats.rounds = 0;
    }

    // The words are read in this order: the tail is at or above the head that was read before it.
    void begin_round() {
        in_round = true;
        turn = 0;
        copied = 0;
        stats.rounds++;
        linked = map.segment().linked();
        for (std::uint32_t lane = 0; lane < places.size(); lane++) {
            TapPlace& place = places[lane];
            const std::uint64_t head = observe(map.entry(lane).head);
            const std::uint64_t tail = observe(map.owner(lane).tail);
            const std::uint64_t capacity = map.geometry().capacity(lane);
            const bool sound = (head | tail) % line_bytes == 0 && tail >= head &&
                               tail - head <= 2 * capacity && capacity != 0;
            place.end = 0;
            if (!sound) continue;
            if (!place.begun) begin(lane, place, head, tail);
            // A position above the tail came from a damaged word.
            if (place.at < head || place.at > tail) place.at = head;
            place.end = tail;
        }
    }

    void begin(std::uint32_t lane, TapPlace& place, std::uint64_t head, std::uint64_t tail) {
        place.begun = true;
        place.at = head;
        if (head != tail || lane == map.geometry().spill_lane()) return;
        const std::uint32_t epoch = observe(map.owner(lane).epoch);
        seen.begin_behind(lane, epoch, epoch == 0 ? 0 : peek(map.owner(lane).records));
    }

    // True once the consumer has released the record at the lane's place, which then moves on.
    bool passed(std::uint32_t lane, TapPlace& place) const {
        order_reads();
        const std::uint64_t head = observe(map.entry(lane).head);
        if (head <= place.at) return false;
        place.at = head % line_bytes == 0 ? head : place.end;
        return true;
    }

    // Finds the next record of a lane in this round, and copies it. False: there is none.
    bool look(std::uint32_t lane, TapRecord& record) {
        TapPlace& place = places[lane];
        const LaneSize size(map.geometry().capacity(lane));
        const LaneBytes bytes(map, lane, file);
        const bool in_spill = lane == map.geometry().spill_lane();
        while (place.at < place.end && copied < round_bytes) {
            Frame frame;
            const bool valid = checked_frame(bytes, size, place.at, place.end, frame);
            copied += line_bytes;
            if (passed(lane, place)) continue;
            const bool origin =
                in_spill ? frame.lane < map.geometry().lane_count : frame.lane == lane;
            if (!valid || (is_record(frame) && !origin)) {
                stats.unreadable++;
                place.at = place.end;
                return false;
            }
            const std::uint64_t at = place.at;
            if (is_skip(frame)) {
                place.at += frame.bytes;
                continue;
            }
            const RecordName name{frame.lane, frame.epoch, frame.sequence};
            std::byte* const to = copy.room(frame.payload_bytes);
            const bool read = bytes.copy(size.offset(at) + line_bytes, to, frame.payload_bytes);
            copied += frame.payload_bytes;
            if (passed(lane, place)) {
                stats.gone++;
                continue;
            }
            place.at += frame.bytes;
            if (!(in_spill ? seen.take_spilled(name) : seen.take(name))) continue;
            if (read && show(frame, {to, frame.payload_bytes}, record)) return true;
            stats.unreadable++;
        }
        return false;
    }

    bool show(const Frame& frame, std::span<const std::byte> payload, TapRecord& record) {
        if (!record.view.parse(payload, map.schema()).empty()) return false;
        record.bytes = payload;
        record.lane = frame.lane;
        record.epoch = frame.epoch;
        record.sequence = frame.sequence;
        record.committed_ns = frame.committed_ns;
        record.producer = name_of(frame.lane, frame.epoch);
        stats.records++;
        stats.tokens += record.view.n_tokens();
        stats.bytes += payload.size();
        return true;
    }

    std::string_view name_of(std::uint32_t lane, std::uint32_t epoch) {
        TapPlace& place = places[lane];
        if (place.named_epoch != epoch) {
            const LaneOwner& owner = map.owner(lane);
            if (observe(owner.epoch) != epoch) return {};
            place.name = load_name(owner);
            place.named_epoch = epoch;
        }
        return place.name;
    }

    TapPoll poll(TapRecord& record) {
        if (!in_round) begin_round();
        const auto count = static_cast<std::uint32_t>(places.size());
        for (; turn < count && copied < round_bytes; turn++) {
            if (look((first + turn) % count, record)) return TapPoll::record;
        }
        in_round = false;
        const bool all = turn == count;
        // Behind the lane that used up the round's bytes, so that each lane has its turn.
        first = all ? first : (first + turn + 1) % count;
        return all && !linked ? TapPoll::removed : TapPoll::empty;
    }

    RingMap map;
    std::uint64_t round_bytes;
    std::optional<OverflowFile> file;  // none: the ring has none, or it cannot be opened
    std::vector<TapPlace> places;      // of each lane, the spill last
    SeenRecords seen;
    TapCopy copy;
    TapStats stats{};
    bool in_round = false;
    bool linked = true;
    std::uint32_t first = 0;   // the lane with which a round begins
    std::uint32_t turn = 0;    // lanes done in this round
    std::uint64_t copied = 0;  // in this round
};

Tap::Tap(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tap::Tap(Tap&&) noexcept = default;
Tap& Tap::operator=(Tap&&) noexcept = default;
Tap::~Tap() = default;

Result<Tap> Tap::attach(std::string_view ring, const TapOptions& options) {
    if (options.round_bytes == 0) {
        return refused(Errc::invalid_argument, "round_bytes of a tap is 0: give at least 1");
    }
    auto map = RingMap::attach(ring, Deadline::after(options.attach_timeout), Access::read_only);
    if (!map) return std::unexpected(map.error());
    if (map->segment().purpose() != Purpose::records) {
        return refused(Errc::invalid_argument,
                       fmt::format("ring {} holds the values of a store, which a tap cannot read: "
                                   "name a ring of records",
                                   ring));
    }
    std::optional<OverflowFile> file;
    const Geometry& geometry = map->geometry();
    if (geometry.overflow_bytes != 0) {
        auto opened = OverflowFile::open(map->segment().overflow_path(),
                                         geometry.capacity(geometry.spill_lane()), map->ring_id(),
                                         Access::read_only);
        if (opened) file.emplace(std::move(*opened));
    }
    return Tap(std::make_unique<Impl>(std::move(*map), options.round_bytes, std::move(file)));
}

TapPoll Tap::poll(TapRecord& record) {
    return impl_->poll(record);
}
const Schema& Tap::schema() const {
    return impl_->map.schema();
}
std::uint64_t Tap::ring_id() const {
    return impl_->map.ring_id();
}
TapStats Tap::stats() const {
    TapStats stats = impl_->stats;
    stats.missed = impl_->seen.missed();
    return stats;
}

std::string_view name(TapPoll answer) {
    switch (answer) {
        case TapPoll::record:
            return "record";
        case TapPoll::empty:
            return "empty";
        case TapPoll::removed:
            return "removed";
    }
    return "unknown";
}

}  // namespace rollring
