#include "reader_seat.hpp"

#include <fmt/core.h>

#include <chrono>
#include <thread>
#include <utility>

namespace rollring {

ReaderSeat::ReaderSeat(RingMap map, LifeLock life, Mapping all, std::optional<Overflow> overflow,
                       Mapping reader_pages)
    : map_(std::move(map)),
      life_(std::move(life)),
      all_(std::move(all)),
      overflow_(std::move(overflow)),
      reader_pages_(std::move(reader_pages)) {}

Result<ReaderSeat> ReaderSeat::take(std::string_view ring, Purpose purpose, Deadline deadline) {
    auto map = RingMap::attach_for(purpose, ring, deadline);
    if (!map) return std::unexpected(map.error());
    std::optional<LifeLock> life;
    for (;;) {
        if (!map->segment().linked()) {  // removed during the wait: there may be a new one
            map = RingMap::attach_for(purpose, ring, deadline);
            if (!map) return std::unexpected(map.error());
        }
        auto lock = LifeLock::take(map->segment().fd(), LifeByte::consumer());
        if (!lock) return std::unexpected(lock.error());
        life = std::move(*lock);
        if (life) {
            auto stays = map->segment().stays(deadline);
            if (!stays) return std::unexpected(stays.error());
            if (*stays) break;
            continue;
        }
        if (deadline.passed()) {
            return refused(
                Errc::busy,
                fmt::format(
                    "ring {} already has a live consumer (pid {}): stop it, or create another ring",
                    map->segment().ring(), peek(map->control().pid)));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const Segment& segment = map->segment();
    const Geometry& geometry = map->geometry();
    auto all = segment.map(0, geometry.share_seats_offset(), false);
    if (!all) return std::unexpected(all.error());
    auto overflow = Overflow::open(*map);
    if (!overflow) return std::unexpected(overflow.error());
    if (*overflow) {
        std::byte* const spill = all->data() + geometry.data_offset(geometry.spill_lane());
        if (auto laid = (*overflow)->lay_under(spill, false); !laid) {
            return std::unexpected(laid.error());
        }
    }
    auto own = segment.map(geometry.reader_offset(),
                           geometry.owners_offset() - geometry.reader_offset(), true);
    if (!own) return std::unexpected(own.error());
    return ReaderSeat(std::move(*map), std::move(*life), std::move(*all), std::move(*overflow),
                      std::move(*own));
}

std::string ReaderSeat::problem() const {
    if (generation_ == fork_generation()) return {};
    return fmt::format(
        "the consumer of ring {} belongs to the parent process: a forked child can neither read "
        "nor acknowledge",
        map_.segment().ring());
}

void ReaderSeat::give_back() {
    const LifeLock gone = std::move(life_);
    open_ = false;
}

}  // namespace rollring
