#pragma once
// Reads values of a store where they lie, without mapping them: what a location names may be gone
// by now, and a hole that is touched would take a page.

#include <cstdint>
#include <span>

#include "store_rings.hpp"

namespace rollring {

class StoredValues {
  public:
    // The map outlives this.
    explicit StoredValues(const RingMap& map) : map_(&map) {}

    struct Found {
        ValueForm form;
        std::uint64_t offset;  // in the segment
    };
    // Errc::not_stored, Errc::bad_record.
    [[nodiscard]] Result<Found> find(Location at) const;
    // Errc::not_stored: it was cleared meanwhile, and `to` may hold anything.
    [[nodiscard]] Result<void> read(Location at, const Found& found, std::span<std::byte> to) const;
    // Of a lane, as they are found one behind the other; about, while they are put and cleared.
    struct Sum {
        std::uint64_t values = 0;
        std::uint64_t bytes = 0;  // with all that lies beside them
    };
    [[nodiscard]] Sum sum(std::uint32_t lane) const;

  private:
    [[nodiscard]] bool released(const Place& place) const;
    const RingMap* map_;
};

}  // namespace rollring
