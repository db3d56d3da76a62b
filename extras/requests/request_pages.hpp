#pragma once
// The pages of a ring's requests as either end maps them.

#include <string_view>

#include "request_layout.hpp"
#include "ring_map.hpp"

namespace rollring::requests {

// Whether this end writes the bodies.
enum class Bodies { written, read };

class RequestPages {
  public:
    // Waits for the ring. The first end to come makes the object.
    static Result<RequestPages> attach(std::string_view ring, Deadline deadline, Bodies bodies);

    [[nodiscard]] int fd() const { return object_.fd(); }
    // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.UndefReturn): it loses sight of a move
    [[nodiscard]] std::uint32_t count() const { return geometry_.places; }
    [[nodiscard]] std::uint64_t body_bytes() const { return geometry_.body_bytes; }

    [[nodiscard]] Bell& worker_bell() const { return shared_.at<Bell>(0); }
    [[nodiscard]] Bell& board_bell() const { return shared_.at<Bell>(sizeof(Bell)); }
    [[nodiscard]] RequestControl& control() const {
        return shared<RequestControl>(RequestGeometry::control_offset());
    }
    [[nodiscard]] RequestSeat& seat(std::uint32_t seat) const {
        return shared<RequestSeat>(RequestGeometry::seats_offset() + seat * sizeof(RequestSeat));
    }
    [[nodiscard]] RequestEntry& entry(std::uint32_t place) const {
        return shared<RequestEntry>(RequestGeometry::entries_offset() +
                                    place * sizeof(RequestEntry));
    }
    [[nodiscard]] std::byte* body(std::uint32_t place) const {
        return bodies_.data() + place * geometry_.body_bytes;
    }
    // Notes for onlookers that the entry's word has just changed.
    void changed(std::uint32_t place) const;
    // Reserves the pages of a body, from its start on.
    [[nodiscard]] Result<void> reserve(std::uint32_t place, std::uint64_t bytes) const;

    // Requires a life byte in hand: Segment::stays(), for the ring and for this object.
    [[nodiscard]] Result<bool> stays(Deadline deadline) const;
    // An error if neither end can continue. Cheap, unless `thorough`.
    [[nodiscard]] Result<void> usable(std::uint64_t generation, bool thorough) const;

    // Returns the requests of `seat`, because its worker lets go of them or is dead. True if there
    // was one.
    bool let_go(std::uint32_t seat) const;
    // The same for all dead workers.
    bool let_go_of_dead() const;
    // Returns one request if its word is still `word`; otherwise false.
    bool let_go(std::uint32_t place, std::uint64_t word) const;

  private:
    RequestPages(RingMap map, Companion object, RequestGeometry geometry, Mapping shared,
                 Mapping bodies);
    // The T at an offset of the object.
    template <class T>
    [[nodiscard]] T& shared(std::uint64_t offset) const {
        return shared_.at<T>(offset - RequestGeometry::shared_offset());
    }
    RingMap map_;
    Companion object_;
    RequestGeometry geometry_;
    Mapping shared_;  // the bells to the entries
    Mapping bodies_;
};

// The interval at which a wait checks for dead workers, and for a removal by other software.
inline constexpr std::int64_t look_around_ns = 50'000'000;

class LookAround {
  public:
    // True at first, and then from time to time.
    [[nodiscard]] bool due() {
        const std::int64_t now = monotonic_ns();
        if (now - last_ns_ < look_around_ns) return false;
        last_ns_ = now;
        return true;
    }

  private:
    std::int64_t last_ns_ = 0;
};

}  // namespace rollring::requests
