#include "shared_ring.hpp"

#include <errno.h>
#include <fmt/core.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "checked_frame.hpp"
#include "fault_point.hpp"
#include "frames_by_read.hpp"
#include "share_book.hpp"

namespace rollring {
namespace {

struct Seat {
    std::uint32_t number;
    LifeLock life;
};

// First clears the words of the seat's last reader: the lock proves that this reader is gone.
Result<std::optional<Seat>> take_seat(const RingMap& map, const Mapping& seats,
                                      std::string_view name) {
    for (std::uint32_t number = 0; number < share_seats; number++) {
        auto lock = LifeLock::take(map.segment().fd(), LifeByte::share_seat(number));
        if (!lock) return std::unexpected(lock.error());
        if (!lock->has_value()) continue;
        ShareSeat& seat = share_seat(seats, number);
        for (auto& held : seat.holds) held.exchange(0);
        FAULT_POINT("share.seat_taken");
        seat.name.store(name.empty() ? program_invocation_short_name : name);
        poke(seat.pid, static_cast<std::uint32_t>(getpid()));
        return Seat{number, std::move(**lock)};
    }
    return std::nullopt;
}

std::unexpected<Error> stale(const RingMap& map, std::string_view why) {
    return refused(Errc::stale_ticket,
                   fmt::format("the ticket is stale: {} (ring {})", why, map.segment().ring()));
}

// Frames read from a mapping.
struct MappedFrames {
    const std::byte* data;
    [[nodiscard]] Frame read(std::uint64_t offset) const { return load_once<Frame>(data + offset); }
};

}  // namespace

SharedRing::SharedRing(RingMap map, LifeLock life, Mapping seats, Mapping all, std::uint32_t seat)
    : map_(std::move(map)),
      life_(std::move(life)),
      seats_(std::move(seats)),
      all_(std::move(all)),
      seat_(seat) {}

Result<SharedRing> SharedRing::attach(std::string_view ring, std::string_view name,
                                      Deadline deadline) {
    while (true) {
        auto map = RingMap::attach(ring, deadline);
        if (!map) return std::unexpected(map.error());
        auto seats = map_share_seats(map->segment(), true);
        if (!seats) return std::unexpected(seats.error());
        auto seat = take_seat(*map, *seats, name);
        if (!seat) return std::unexpected(seat.error());
        if (!*seat) {
            return refused(Errc::busy,
                           fmt::format("ring {} already has {} readers", ring, share_seats));
        }
        auto stays = map->segment().stays(deadline);
        if (!stays) return std::unexpected(stays.error());
        if (!*stays) continue;  // removed meanwhile: there may be a new one of that name
        auto all = map->segment().map(0, map->geometry().share_seats_offset(), false);
        if (!all) return std::unexpected(all.error());
        return SharedRing(std::move(*map), std::move((*seat)->life), std::move(*seats),
                          std::move(*all), (*seat)->number);
    }
}

ShareSeat& SharedRing::own() const {
    return share_seat(seats_, seat_);
}

std::optional<std::uint32_t> SharedRing::hold(std::uint64_t number) {
    for (std::uint32_t place = 0; place < shares_a_seat; place++) {
        if (used_[place]) continue;
        used_[place] = true;
        own().holds[place].exchange(number);
        FAULT_POINT("share.held");
        return place;
    }
    return std::nullopt;
}

void SharedRing::let_go(std::uint32_t place) {
    used_[place] = false;
    own().holds[place].exchange(0);
    FAULT_POINT("share.let_go");
    ring_plain(map_.share_bell());
}

// The swap comes after all reads of the share, and before the reads of the words that show its end:
// a process that overwrites the share's memory has changed one of these words long before.
Result<void> SharedRing::check(const TicketHead& ticket, std::uint32_t place, bool begin) const {
    if (inherited()) {
        return refused(Errc::forked, "the share belongs to the parent process: open another one");
    }
    const std::uint64_t held = own().holds[place].exchange(ticket.number);
    const std::uint64_t shared = map_.shares().batches[ticket.row].load();
    if (map_.control().epoch.load() != ticket.epoch) {
        return stale(map_,
                     "another trainer has taken the ring, and may have given the records back");
    }
    const bool ending = shared == (ticket.number | share_ending);
    if (shared != ticket.number && (begin || !ending)) {
        return stale(map_, "its batch was acknowledged or given back");
    }
    if (held != ticket.number) {
        return stale(map_,
                     "this reader's seat was overwritten, so the trainer did not wait for it");
    }
    return {};
}

Result<void> SharedRing::follow_overflow() {
    const Geometry& geometry = map_.geometry();
    if (geometry.overflow_bytes == 0) return {};
    if (overflow_ && peek(map_.control().overflow_begin) == overflow_->begin()) return {};
    auto opened = Overflow::open(map_);
    if (!opened) return std::unexpected(opened.error());
    overflow_ = std::move(*opened);
    return overflow_->lay_under(all_.data() + geometry.data_offset(geometry.spill_lane()), false);
}

bool SharedRing::frame_at(std::uint32_t lane, std::uint64_t position, std::uint64_t end,
                          Frame& frame) const {
    const Geometry& geometry = map_.geometry();
    const LaneSize size(geometry.capacity(lane));
    const std::uint64_t at = geometry.data_offset(lane);
    const bool in_file =
        overflow_ && lane == geometry.spill_lane() && size.offset(position) >= overflow_->begin();
    return in_file ? checked_frame(MappedFrames{all_.data() + at}, size, position, end, frame)
                   : checked_frame(FramesByRead{map_.segment(), at}, size, position, end, frame);
}

Result<std::span<const std::byte>> SharedRing::find(const TicketRecord& record) {
    const Geometry& geometry = map_.geometry();
    const auto refuse = [&] {
        return refused(Errc::bad_record,
                       fmt::format("the ticket names a missing record: lane {}, position {}, of "
                                   "lane {}, epoch {}, sequence {}",
                                   record.lane, record.position, record.producer_lane,
                                   record.producer_epoch, record.sequence));
    };
    const bool is_spill = record.lane == geometry.spill_lane();
    if (record.lane > geometry.spill_lane() || geometry.capacity(record.lane) == 0) return refuse();
    if (is_spill) {
        if (auto followed = follow_overflow(); !followed) {
            return std::unexpected(followed.error());
        }
    }
    const std::uint64_t bytes = std::uint64_t{record.lines} * line_bytes;
    const std::uint64_t head = observe(map_.entry(record.lane).head);
    const std::uint64_t tail = observe(map_.owner(record.lane).tail);
    const bool between = record.position % line_bytes == 0 && record.position >= head &&
                         record.position < tail && tail - record.position >= bytes;
    Frame frame;
    if (!between || !frame_at(record.lane, record.position, record.position + bytes, frame) ||
        !is_record(frame) || frame.bytes != bytes || frame.lane != record.producer_lane ||
        frame.epoch != record.producer_epoch || frame.sequence != record.sequence) {
        return refuse();
    }
    const LaneSize size(geometry.capacity(record.lane));
    return std::span<const std::byte>(
        all_.data() + geometry.data_offset(record.lane) + size.offset(record.position) + line_bytes,
        frame.payload_bytes);
}

}  // namespace rollring
