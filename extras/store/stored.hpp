#pragma once
// Reads values of a store in place, without mapping them: a value may be cleared meanwhile, and
// touching a hole would allocate a page.

#include <array>
#include <cstdint>
#include <span>

#include "store_rings.hpp"

namespace rollring {

// Whether values were released. One read caches the marks of neighbours, so an answer may be as old
// as this object: make a new one for each check.
class ReleasedMarks {
  public:
    explicit ReleasedMarks(const RingMap& map) : map_(&map) {}
    // The bookkeeper marks a value, or moves the cursor over it, before its memory is reused.
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
    // The map must outlive this object.
    explicit StoredValues(const RingMap& map) : map_(&map) {}

    // Errc::not_stored, Errc::bad_record.
    [[nodiscard]] Result<void> find(std::span<const Location> at,
                                    std::span<StoredValue> found) const;
    // Errc::not_stored: one was cleared meanwhile.
    [[nodiscard]] Result<void> read(std::span<const StoredValue> found,
                                    std::span<std::byte* const> to) const;
    // Totals of a lane by a scan of its frames; approximate while others put and clear.
    struct Sum {
        std::uint64_t values = 0;
        std::uint64_t bytes = 0;  // with frames, headers and padding
    };
    [[nodiscard]] Sum sum(std::uint32_t lane) const;

  private:
    [[nodiscard]] Result<StoredValue> find_one(Location at) const;
    [[nodiscard]] Result<void> still_there(std::span<const StoredValue> found) const;
    const RingMap* map_;
};

}  // namespace rollring
