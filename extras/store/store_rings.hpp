#pragma once
// A store's two rings: one for its values, and one for requests to clear values, so that a full
// store can still be told to clear some.

#include <cstdint>
#include <string>
#include <string_view>

#include "ring_map.hpp"
#include "rollring/extras/store.hpp"

namespace rollring {

// The column of a value, behind the standard ones.
inline constexpr auto value_column = static_cast<std::uint16_t>(Std::count);
// A location: the lane's number plus 1 from this bit on, and below it the position in the lane, in
// units of line_bytes.
inline constexpr int location_lane_shift = 51;

inline Location location_of(std::uint32_t lane, std::uint64_t position) {
    return {(std::uint64_t{lane} + 1) << location_lane_shift | position / line_bytes};
}
struct Place {
    std::uint32_t lane;
    std::uint64_t position;
};
// For any number: `lane` may not exist in the ring.
inline Place place_of(Location at) {
    const std::uint64_t lines = at.number & ((std::uint64_t{1} << location_lane_shift) - 1);
    return {static_cast<std::uint32_t>(at.number >> location_lane_shift) - 1, lines * line_bytes};
}

// The kind of name in a record of the second ring.
enum class ClearBy : std::uint16_t { location = 1, key = 2 };

struct StoreRings {
    RingMap values;
    RingMap clears;

    // Makes the rings that are missing.
    static Result<StoreRings> open(std::string_view name, const StoreOptions& options,
                                   Deadline deadline);
    static std::string clears_name(std::string_view name);
};

}  // namespace rollring
