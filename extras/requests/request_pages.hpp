#pragma once
// A ring's pages of requests, as either end maps them.

#include <string_view>

#include "request_word.hpp"
#include "ring_map.hpp"

namespace rollring::requests {

// Whether bodies are written by this end.
enum class Bodies { written, read };

class RequestPages {
  public:
    // Waits for the ring, and reserves what both ends write.
    static Result<RequestPages> attach(std::string_view ring, Deadline deadline, Bodies bodies);

    [[nodiscard]] int fd() const { return map_.segment().fd(); }
    [[nodiscard]] const Segment& segment() const { return map_.segment(); }
    [[nodiscard]] const Geometry& geometry() const { return map_.geometry(); }
    [[nodiscard]] std::uint32_t count() const { return geometry().requests; }

    [[nodiscard]] Bell& worker_bell() const { return shared_.at<Bell>(0); }
    [[nodiscard]] Bell& board_bell() const { return shared_.at<Bell>(sizeof(Bell)); }
    [[nodiscard]] RequestControl& control() const {
        return shared_.at<RequestControl>(2 * sizeof(Bell));
    }
    [[nodiscard]] RequestSeat& seat(std::uint32_t seat) const {
        return shared_.at<RequestSeat>(page_bytes + seat * sizeof(RequestSeat));
    }
    [[nodiscard]] RequestEntry& entry(std::uint32_t place) const {
        return shared_.at<RequestEntry>(geometry().request_entries_offset() -
                                        geometry().requests_offset() +
                                        place * sizeof(RequestEntry));
    }
    [[nodiscard]] std::byte* body(std::uint32_t place) const {
        return bodies_.data() + place * geometry().request_bytes;
    }
    // Notes that the word of it has changed just now, for those who look.
    void changed(std::uint32_t place) const;
    // Of a body, whose pages are reserved from its start on.
    [[nodiscard]] Result<void> reserve(std::uint32_t place, std::uint64_t bytes) const;

    // Why neither end can go on; nothing if it can. Cheap, unless `thorough`.
    [[nodiscard]] Result<void> usable(std::uint64_t generation, bool thorough) const;

    // Takes what `seat` has from it, because its worker lets go or is dead. True if there was
    // something.
    bool let_go(std::uint32_t seat) const;
    // The same of all whose workers are dead.
    bool let_go_of_dead() const;
    // One request, if it still is what `word` says. False if not.
    bool let_go(std::uint32_t place, std::uint64_t word) const;

  private:
    RequestPages(RingMap map, Mapping shared, Mapping bodies);
    RingMap map_;
    Mapping shared_;  // the bells to the entries
    Mapping bodies_;
};

// How often a wait looks for the dead, and whether the ring was removed by other means.
inline constexpr std::int64_t look_around_ns = 50'000'000;

class LookAround {
  public:
    // True at first, and then now and then.
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
