#pragma once
// Reads values of a store where they lie, without mapping them: what a location names may be gone
// by now, and a hole that is touched would take a page.

#include <array>
#include <cstdint>
#include <span>

#include "store_rings.hpp"

namespace rollring {

// Whether values were released. Marks of neighbours come with one read, so what is said of a value
// holds for the moment at which this was made, or a later one: make another for each look.
class ReleasedMarks {
  public:
    explicit ReleasedMarks(const RingMap& map) : map_(&map) {}
    // Whoever keeps the books marks it, or moves the cursor over it, before its memory is
    // another's.
    [[nodiscard]] bool released(const Place& place);

  private:
    [[nodiscard]] bool marked(const Place& place);
    const RingMap* map_;
    std::array<std::uint64_t, 64> words_;  // those from first_ to end_ of the lane
    std::uint32_t lane_ = 0;
    std::uint64_t first_ = 0;
    std::uint64_t end_ = 0;
};

class StoredValues {
  public:
    // The map outlives this.
    explicit StoredValues(const RingMap& map) : map_(&map) {}

    // Errc::not_stored, Errc::bad_record.
    [[nodiscard]] Result<void> find(std::span<const Location> at,
                                    std::span<StoredValue> found) const;
    // Errc::not_stored: one was cleared meanwhile.
    [[nodiscard]] Result<void> read(std::span<const StoredValue> found,
                                    std::span<std::byte* const> to) const;
    // Of a lane, as they are found one behind the other; about, while they are put and cleared.
    struct Sum {
        std::uint64_t values = 0;
        std::uint64_t bytes = 0;  // with all that lies beside them
    };
    [[nodiscard]] Sum sum(std::uint32_t lane) const;

  private:
    [[nodiscard]] Result<StoredValue> find_one(Location at) const;
    [[nodiscard]] Result<void> still_there(std::span<const StoredValue> found) const;
    const RingMap* map_;
};

}  // namespace rollring
