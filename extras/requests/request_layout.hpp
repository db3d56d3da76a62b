#pragma once
// Every structure of a ring's requests. They lie in an object of their own beside the ring
// (lib/shm/companion.hpp), which the end that opens first makes.
//
//   header page    CompanionHeader; sizes: places, bytes of each body
//   control page   the bells of the workers and of the board: both; RequestControl: the board
//   seats          each RequestWorker: its own
//   entries        both: the states of the requests and their workers
//   bodies         the board
//
// All memory except the bodies is reserved when the object is made; a body when a request of that
// length is posted.

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "companion.hpp"
#include "layout.hpp"
#include "liveness.hpp"
#include "request_word.hpp"
#include "round_up.hpp"

namespace rollring::requests {

inline constexpr CompanionKind kind{.name = "requests",
                                    .text = "the requests",
                                    .magic = 0x31535145524c4c52,  // "RLLREQS1"
                                    .version = 1,
                                    .remedy = "lower --requests or --request-bytes"};
inline constexpr std::uint32_t request_seats = 1024;
static_assert(requests_max == 1U << place_bits);

// Written by the board, except for given_up: the process that ends a request's last attempt adds to
// that.
struct RequestControl {
    std::atomic<std::uint32_t> epoch;     // grows with each board that takes the seat
    std::atomic<std::uint32_t> attempts;  // workers that may begin a request
    std::atomic<std::uint32_t> pid;       // in its own PID namespace: for people
    std::uint8_t reserved[4];
    std::atomic<std::uint64_t> posted;  // over the ring's life, as are the next
    std::atomic<std::uint64_t> withdrawn;
    std::atomic<std::uint64_t> given_up;
    std::uint8_t reserved1[24];
};
static_assert(sizeof(RequestControl) == line_bytes);
static_assert(std::has_unique_object_representations_v<RequestControl>);

// A worker's own words, under its life byte.
struct RequestSeat {
    std::atomic<std::uint32_t> pid;  // in its own PID namespace: for people
    std::uint8_t reserved[4];
    SharedText<40> name;                  // UTF-8, NUL-padded
    std::atomic<std::uint64_t> finished;  // by all workers of the seat, without withdrawn ones
    std::uint8_t reserved1[8];
};
static_assert(sizeof(RequestSeat) == line_bytes);

struct RequestEntry {
    std::atomic<std::uint64_t> word;       // its state and its worker: requests::Word
    std::atomic<std::uint64_t> bytes;      // of its body
    std::atomic<std::int64_t> posted_ns;   // CLOCK_MONOTONIC, as is the next
    std::atomic<std::int64_t> changed_ns;  // when its word last changed; only grows until a post
    std::uint8_t reserved[32];
};
static_assert(sizeof(RequestEntry) == line_bytes);
static_assert(std::has_unique_object_representations_v<RequestEntry>);

struct RequestGeometry {
    std::uint32_t places;
    std::uint64_t body_bytes;  // of each, a multiple of a page

    [[nodiscard]] static constexpr std::uint64_t shared_offset() { return page_bytes; }
    [[nodiscard]] static constexpr std::uint64_t control_offset() {
        return shared_offset() + 2 * sizeof(Bell);
    }
    [[nodiscard]] static constexpr std::uint64_t seats_offset() {
        return shared_offset() + page_bytes;
    }
    [[nodiscard]] static constexpr std::uint64_t entries_offset() {
        return seats_offset() + request_seats * sizeof(RequestSeat);
    }
    [[nodiscard]] constexpr std::uint64_t bodies_offset() const {
        return entries_offset() + round_up(places * sizeof(RequestEntry), page_bytes);
    }
    [[nodiscard]] constexpr std::uint64_t body_offset(std::uint32_t place) const {
        return bodies_offset() + place * body_bytes;
    }
    [[nodiscard]] constexpr CompanionPlan plan() const {
        return {{places, body_bytes}, body_offset(places), bodies_offset()};
    }

    // Errc::not_a_ring if the header has impossible values.
    static Result<RequestGeometry> of(const Companion& object);
};

// The object's life bytes.
inline LifeByte board_byte() {
    return LifeByte::beside(0);
}
inline LifeByte seat_byte(std::uint32_t seat) {
    return LifeByte::beside(1 + seat);
}

}  // namespace rollring::requests
