#pragma once
// The consumer's seat at a ring: the lock that proves it, the whole ring mapped read-only, and the
// reader pages, which only the holder of the seat writes.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "liveness.hpp"
#include "overflow.hpp"
#include "ring_map.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"

namespace rollring {

class ReaderSeat {
  public:
    // Waits for the ring to appear and for the seat to be free.
    static Result<ReaderSeat> take(std::string_view ring, Purpose purpose, Deadline deadline);

    [[nodiscard]] const RingMap& map() const { return map_; }
    // The whole ring, with the overflow file mapped over its part of the spill. Not to be written.
    [[nodiscard]] const Mapping& all() const { return all_; }
    [[nodiscard]] const Mapping& reader_pages() const { return reader_pages_; }
    [[nodiscard]] ReaderControl& control() const { return reader_pages_.at<ReaderControl>(0); }
    // The part of the spill beyond its memory; null if the ring has no overflow file.
    [[nodiscard]] Overflow* overflow() { return overflow_ ? &*overflow_ : nullptr; }

    // False after give_back(), and in a forked child.
    [[nodiscard]] bool usable() const { return open_ && generation_ == fork_generation(); }
    // In a forked child, the text of the error; otherwise empty.
    [[nodiscard]] std::string problem() const;
    void give_back();

  private:
    ReaderSeat(RingMap map, LifeLock life, Mapping all, std::optional<Overflow> overflow,
               Mapping reader_pages);

    RingMap map_;
    LifeLock life_;
    Mapping all_;
    std::optional<Overflow> overflow_;
    Mapping reader_pages_;
    std::uint64_t generation_ = fork_generation();
    bool open_ = true;
};

}  // namespace rollring
