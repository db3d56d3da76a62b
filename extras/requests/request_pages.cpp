#include "request_pages.hpp"

#include <fmt/core.h>

#include <utility>

#include "liveness.hpp"

namespace rollring::requests {

Result<RequestGeometry> RequestGeometry::of(const Companion& object) {
    const std::uint64_t places = object.header().sizes[0];
    const std::uint64_t bytes = object.header().sizes[1];
    const bool sound = places > 0 && places <= requests_max && bytes > 0 &&
                       bytes <= lane_bytes_max && bytes % page_bytes == 0;
    const RequestGeometry geometry{static_cast<std::uint32_t>(places), bytes};
    if (sound && geometry.plan().object_bytes == object.header().object_bytes) return geometry;
    return refused(Errc::not_a_ring,
                   fmt::format("{} is damaged: remove the ring with 'rollring rm'", object.name()));
}

RequestPages::RequestPages(RingMap map, Companion object, RequestGeometry geometry, Mapping shared,
                           Mapping bodies)
    : map_(std::move(map)),
      object_(std::move(object)),
      geometry_(geometry),
      shared_(std::move(shared)),
      bodies_(std::move(bodies)) {}

Result<RequestPages> RequestPages::attach(std::string_view ring, Deadline deadline, Bodies bodies) {
    auto map = RingMap::attach(ring, deadline);
    if (!map) return std::unexpected(map.error());
    const SegmentHeader& header = map->segment().header();
    if (header.requests == 0) {
        return refused(
            Errc::invalid_argument,
            fmt::format("ring {} was created without requests: create it with --requests", ring));
    }
    const RequestGeometry wanted{header.requests, header.request_bytes};
    auto object = Companion::open_or_make(map->segment(), kind, wanted.plan(), deadline);
    // There may be a new ring of that name.
    if (!object && object.error().code == Errc::closed) return attach(ring, deadline, bodies);
    if (!object) return std::unexpected(object.error());
    auto geometry = RequestGeometry::of(*object);
    if (!geometry) return std::unexpected(geometry.error());
    const std::uint64_t from = RequestGeometry::shared_offset();
    auto shared = object->map(from, geometry->bodies_offset() - from, true);
    if (!shared) return std::unexpected(shared.error());
    auto mapped = object->map(geometry->bodies_offset(), geometry->places * geometry->body_bytes,
                              bodies == Bodies::written);
    if (!mapped) return std::unexpected(mapped.error());
    return RequestPages(std::move(*map), std::move(*object), *geometry, std::move(*shared),
                        std::move(*mapped));
}

Result<void> RequestPages::reserve(std::uint32_t place, std::uint64_t bytes) const {
    return object_.reserve(geometry_.body_offset(place), bytes, "a request", kind.remedy);
}

Result<bool> RequestPages::stays(Deadline deadline) const {
    auto ring = map_.segment().stays(deadline);
    if (!ring || !*ring) return ring;
    return object_.linked();
}

// Concurrent callers keep the latest time; a stopped one must not move it back.
void RequestPages::changed(std::uint32_t place) const {
    std::atomic<std::int64_t>& word = entry(place).changed_ns;
    const std::int64_t now_ns = monotonic_ns();
    std::int64_t seen = peek(word);
    while (seen < now_ns && !word.compare_exchange_weak(seen, now_ns)) {
    }
}

Result<void> RequestPages::usable(std::uint64_t generation, bool thorough) const {
    if (generation != fork_generation()) {
        return refused(Errc::forked,
                       "it belongs to the parent process: open another one after the fork");
    }
    // Checked before the ring's name, which a remover unlinks first.
    const bool gone = thorough && !object_.linked();
    if (map_.is_removed(thorough)) {
        return refused(Errc::closed, fmt::format("ring {} was removed", map_.segment().ring()));
    }
    if (gone) {
        return refused(Errc::closed,
                       fmt::format("the requests of ring {} were removed, and the ring was not: "
                                   "open the board and the workers again",
                                   map_.segment().ring()));
    }
    return {};
}

bool RequestPages::let_go(std::uint32_t place, std::uint64_t word) const {
    std::uint32_t attempts = peek(control().attempts);
    if (attempts < 1 || attempts > attempts_most) attempts = attempts_most;
    const Word next = Word::of(word).let_go(attempts);
    if (!entry(place).word.compare_exchange_strong(word, next.packed())) return false;
    changed(place);
    if (next.state == State::given_up) control().given_up.fetch_add(1);
    ring_plain(next.state == State::waiting ? worker_bell() : board_bell());
    return true;
}

bool RequestPages::let_go(std::uint32_t seat) const {
    bool found = false;
    for (std::uint32_t place = 0; place < count(); place++) {
        // Retry if a withdrawal changed the word.
        for (std::uint64_t word = observe(entry(place).word);
             Word::of(word).state == State::taken && Word::of(word).seat == seat;
             word = observe(entry(place).word)) {
            found |= let_go(place, word);
        }
    }
    return found;
}

bool RequestPages::let_go_of_dead() const {
    bool found = false;
    for (std::uint32_t place = 0; place < count(); place++) {
        const std::uint64_t word = observe(entry(place).word);
        if (Word::of(word).state != State::taken) continue;
        // The word is read before the life byte: a new holder of the seat first returns its
        // predecessor's requests, so the swap fails.
        if (alive(fd(), seat_byte(Word::of(word).seat))) continue;
        found |= let_go(place, word);
    }
    return found;
}

}  // namespace rollring::requests
