#include "request_pages.hpp"

#include <fmt/format.h>

#include <utility>

#include "liveness.hpp"

namespace rollring::requests {

RequestPages::RequestPages(RingMap map, Mapping shared, Mapping bodies)
    : map_(std::move(map)), shared_(std::move(shared)), bodies_(std::move(bodies)) {}

Result<RequestPages> RequestPages::attach(std::string_view ring, Deadline deadline, Bodies bodies) {
    auto map = RingMap::attach(ring, deadline);
    if (!map) return std::unexpected(map.error());
    const Geometry& geometry = map->geometry();
    if (geometry.requests == 0) {
        return refused(
            Errc::invalid_argument,
            fmt::format("ring {} was created without requests: create it with --requests", ring));
    }
    const std::uint64_t from = geometry.requests_offset();
    const std::uint64_t bytes = geometry.request_bodies_offset() - from;
    if (auto reserved =
            map->segment().reserve(from, bytes, "the requests of a ring", "lower --requests");
        !reserved) {
        return std::unexpected(reserved.error());
    }
    auto shared = map->segment().map(from, bytes, true);
    if (!shared) return std::unexpected(shared.error());
    auto mapped =
        map->segment().map(geometry.request_bodies_offset(),
                           geometry.requests * geometry.request_bytes, bodies == Bodies::written);
    if (!mapped) return std::unexpected(mapped.error());
    return RequestPages(std::move(*map), std::move(*shared), std::move(*mapped));
}

Result<void> RequestPages::reserve(std::uint32_t place, std::uint64_t bytes) const {
    return segment().reserve(geometry().request_bodies_offset() + place * geometry().request_bytes,
                             bytes, "a request", "lower --requests or --request-bytes");
}

// Of several who do this at a time the latest counts: one may have been stopped in between.
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
    if (map_.is_removed(thorough)) {
        return refused(Errc::closed, fmt::format("ring {} was removed", segment().ring()));
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
        // Again if it was withdrawn meanwhile.
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
        // The word was read before the byte was asked: a worker that has the seat by now has let go
        // of all that it found, and the word is another one.
        if (alive(fd(), LifeByte::request_seat(Word::of(word).seat))) continue;
        found |= let_go(place, word);
    }
    return found;
}

}  // namespace rollring::requests
