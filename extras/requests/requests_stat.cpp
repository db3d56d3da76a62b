#include "rollring/extras/requests.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "liveness.hpp"
#include "request_layout.hpp"
#include "ring_map.hpp"
#include "rollring/ring.hpp"

namespace rollring {
namespace {

using requests::request_seats;
using requests::RequestControl;
using requests::RequestEntry;
using requests::RequestGeometry;
using requests::RequestSeat;
using requests::State;
using requests::Word;

// Copies by system calls, which allocate no page of the sparse object. Each word is read as a
// whole.
template <class T>
std::vector<T> read_all(const Companion& object, std::uint64_t offset, std::uint64_t count) {
    std::vector<T> rows(count);
    if (!object.read(offset, rows.data(), count * sizeof(T))) rows.clear();
    return rows;
}

// Seats are taken from the first one on: the first seat that was never used ends the list.
void read_workers(const Companion& object, RequestsStat& stat) {
    constexpr std::uint32_t per_read = 64;
    for (std::uint32_t first = 0; first < request_seats; first += per_read) {
        const auto seats = read_all<RequestSeat>(
            object, RequestGeometry::seats_offset() + first * sizeof(RequestSeat), per_read);
        for (std::uint32_t i = 0; i < seats.size(); i++) {
            const std::uint32_t pid = peek(seats[i].pid);
            if (pid == 0) return;
            const bool lives = alive(object.fd(), requests::seat_byte(first + i));
            stat.workers.push_back({first + i, printable(seats[i].name.load()), pid, lives, 0, -1,
                                    peek(seats[i].finished)});
            stat.workers_alive += lives;
            stat.answered += peek(seats[i].finished);
        }
    }
}

std::optional<RequestState> state_of(const Word& word) {
    switch (word.state) {
        case State::waiting:
            return RequestState::waiting;
        case State::taken:
            return word.withdrawn ? RequestState::withdrawn : RequestState::taken;
        case State::given_up:
            return RequestState::given_up;
        case State::free:
            break;
    }
    return std::nullopt;  // free, or a damaged word
}

// Returns the worker's name, and counts the request for that worker.
std::string tell_worker(RequestsStat& stat, std::uint32_t seat, std::int64_t since_ns) {
    if (seat >= stat.workers.size()) return fmt::format("(seat {})", seat);
    RequestWorkerStat& worker = stat.workers[seat];
    worker.taken++;
    worker.oldest_ns = std::max(worker.oldest_ns, since_ns);
    return fmt::format("{} (seat {})", worker.name, seat);
}

void read_requests(const Companion& object, RequestsStat& stat) {
    const std::int64_t now_ns = monotonic_ns();
    const auto entries =
        read_all<RequestEntry>(object, RequestGeometry::entries_offset(), stat.places);
    for (std::uint32_t place = 0; place < entries.size(); place++) {
        const RequestEntry& entry = entries[place];
        const Word word = Word::of(peek(entry.word));
        const auto state = state_of(word);
        if (!state) continue;
        RequestStat& request = stat.requests.emplace_back();
        request.number = requests::number_of(word.serial, place);
        request.state = *state;
        request.attempt = word.attempt;
        request.age_ns = age_ns(now_ns, peek(entry.posted_ns));
        request.unchanged_ns = age_ns(now_ns, peek(entry.changed_ns));
        request.bytes = peek(entry.bytes);
        if (word.state == State::taken) {
            request.worker = tell_worker(stat, word.seat, request.unchanged_ns);
        }
        if (*state == RequestState::waiting) {
            stat.waiting++;
            stat.oldest_waiting_ns = std::max(stat.oldest_waiting_ns, request.unchanged_ns);
        } else if (*state == RequestState::taken) {
            stat.taken++;
            stat.oldest_taken_ns = std::max(stat.oldest_taken_ns, request.unchanged_ns);
        }
    }
    std::ranges::sort(stat.requests, std::ranges::greater(), &RequestStat::age_ns);
}

}  // namespace

std::string_view name(RequestState state) {
    switch (state) {
        case RequestState::waiting:
            return "waiting";
        case RequestState::taken:
            return "taken";
        case RequestState::withdrawn:
            return "withdrawn";
        case RequestState::given_up:
            return "given up";
    }
    return "unknown";
}

Result<RequestsStat> stat_requests(std::string_view ring) {
    auto map = RingMap::attach(ring, Deadline::now(), Access::read_only);
    if (!map) return std::unexpected(map.error());
    RequestsStat stat{};
    stat.ring = ring;
    stat.places = map->segment().header().requests;
    stat.oldest_waiting_ns = stat.oldest_taken_ns = -1;
    if (stat.places == 0) return stat;
    const auto object = Companion::look(map->segment(), requests::kind);
    if (!object && object.error().code == Errc::not_found) return stat;  // no end has opened yet
    if (!object) return std::unexpected(object.error());
    const auto geometry = RequestGeometry::of(*object);
    if (!geometry) return std::unexpected(geometry.error());
    stat.places = geometry->places;
    const auto control = read_all<RequestControl>(*object, RequestGeometry::control_offset(), 1);
    if (control.empty()) return stat;
    stat.board_alive = alive(object->fd(), requests::board_byte());
    stat.board_pid = peek(control[0].pid);
    stat.board_epoch = peek(control[0].epoch);
    stat.attempts = peek(control[0].attempts);
    stat.posted = peek(control[0].posted);
    stat.given_up = peek(control[0].given_up);
    stat.withdrawn = peek(control[0].withdrawn);
    read_workers(*object, stat);
    if (stat.board_epoch != 0) read_requests(*object, stat);
    stat.used = stat.board_epoch != 0 || !stat.workers.empty();
    return stat;
}

}  // namespace rollring
