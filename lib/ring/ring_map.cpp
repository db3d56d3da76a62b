#include "ring_map.hpp"

#include <fmt/core.h>

#include <cerrno>

#include "liveness.hpp"
#include "rollring/ring.hpp"
#include "schema_page.hpp"

namespace rollring {

RingMap::RingMap(Segment segment, std::unique_ptr<const Schema> schema, Mapping fixed,
                 Mapping bells)
    : segment_(std::move(segment)),
      schema_(std::move(schema)),
      fixed_(std::move(fixed)),
      bells_(std::move(bells)) {}

Result<RingMap> RingMap::attach(std::string_view name, Deadline deadline, Access access) {
    auto segment = Segment::attach(name, deadline, access);
    if (!segment) return std::unexpected(segment.error());
    const Geometry& geometry = segment->geometry();
    auto page = std::make_unique<SchemaPage>();
    if (!segment->read(geometry.schema_offset(), page.get(), sizeof(SchemaPage))) {
        const int error = errno;
        return failed(error == 0 ? Errc::not_a_ring : Errc::system, error,
                      "cannot read the ring's schema page");
    }
    auto schema = from_page(*page);
    if (!schema) return std::unexpected(schema.error());
    auto fixed = segment->map(0, geometry.fixed_bytes(), false);
    if (!fixed) return std::unexpected(fixed.error());
    auto bells =
        segment->map(geometry.bells_offset(), geometry.bells_bytes(), access == Access::read_write);
    if (!bells) return std::unexpected(bells.error());
    return RingMap(std::move(*segment), std::make_unique<const Schema>(std::move(*schema)),
                   std::move(*fixed), std::move(*bells));
}

Result<RingMap> RingMap::attach_for(Purpose purpose, std::string_view name, Deadline deadline) {
    auto map = attach(name, deadline);
    if (!map || map->segment().purpose() == purpose) return map;
    const std::string_view ring = map->segment().ring();
    if (purpose == Purpose::values) {
        return refused(Errc::invalid_argument,
                       fmt::format("ring {} is not a store: use another name for the store, or "
                                   "remove the ring with 'rollring rm {}'",
                                   ring, ring));
    }
    return refused(Errc::invalid_argument,
                   fmt::format("ring {} holds the values of a store: open it as a Store, or use "
                               "another ring",
                               ring));
}

bool RingMap::consumer_alive() const {
    return alive(segment_.fd(), LifeByte::consumer());
}

bool RingMap::producer_alive(std::uint32_t lane) const {
    return alive(segment_.fd(), LifeByte::lane(lane));
}

bool RingMap::has_share_readers() const {
    if (peek(shares().numbers) == 0) return false;
    bool found = false;
    for (std::uint32_t seat = 0; seat < share_seats && !found; seat++) {
        found = alive(segment_.fd(), LifeByte::share_seat(seat));
    }
    return found;
}

bool RingMap::is_removed(bool thorough) const {
    const bool said = peek(policy().removed) != 0;
    if (!said && !thorough) return false;
    if (segment_.linked()) return false;
    if (!said) segment_.tell_removed();
    return true;
}

bool RingMap::lane_is_idle(std::uint32_t lane) const {
    const std::uint32_t next = observe(entry(lane).retired_epoch) + 1;
    return observe(owner(lane).epoch) != next && observe(entry(lane).begun_epoch) != next;
}

bool RingMap::lane_is_sound(std::uint32_t lane) const {
    const std::uint64_t cursor = observe(entry(lane).cursor);
    const std::uint64_t restart_at = observe(entry(lane).restart_at);
    return (cursor | restart_at) % line_bytes == 0 && restart_at >= cursor &&
           restart_at - cursor <= 2 * geometry().lane_bytes;
}

std::string load_name(const LaneOwner& owner) {
    return printable(owner.name.load());
}

std::string load_sender(const RingMap& map, std::uint32_t lane, std::uint32_t epoch) {
    const LaneOwner& owner = map.owner(lane);
    if (observe(owner.epoch) != epoch) {
        return fmt::format("an earlier producer of lane {}", lane);
    }
    const bool closed = observe(owner.state) == static_cast<std::uint32_t>(OwnerState::closed);
    const bool gone = closed || !map.producer_alive(lane);
    return fmt::format("{} (lane {}{})", load_name(owner), lane,
                       !gone    ? ""
                       : closed ? ", closed"
                                : ", died");
}

std::string printable(std::string_view text) {
    std::string shown(text);
    for (std::size_t i = 0; i < shown.size(); i++) {
        const auto byte = static_cast<unsigned char>(shown[i]);
        // In UTF-8 the controls U+0080 to U+009F are C2 and then the number.
        const bool second = i > 0 && text[i - 1] == '\xc2' && byte >= 0x80 && byte < 0xa0;
        if (second) shown[i - 1] = '?';
        if (second || byte < 0x20 || byte == 0x7f) shown[i] = '?';
    }
    return shown;
}

}  // namespace rollring
