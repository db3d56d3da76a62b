#pragma once
// A store's two rings: its values, and what is to be cleared. The second one is there so that a
// store that is full can be told what to clear.

#include <cstdint>
#include <string>
#include <string_view>

#include "ring_map.hpp"
#include "rollring/extras/store.hpp"

namespace rollring {

// The column of a value, behind the standard ones.
inline constexpr auto value_column = static_cast<std::uint16_t>(Std::count);
// A position of a lane in units of this is what a location says.
inline constexpr int location_lane_shift = 51;

inline Location location_of(std::uint32_t lane, std::uint64_t position) {
    return {(std::uint64_t{lane} + 1) << location_lane_shift | position / line_bytes};
}
struct Place {
    std::uint32_t lane;
    std::uint64_t position;
};
// Of any number: `lane` may be none of the ring's.
inline Place place_of(Location at) {
    const std::uint64_t lines = at.number & ((std::uint64_t{1} << location_lane_shift) - 1);
    return {static_cast<std::uint32_t>(at.number >> location_lane_shift) - 1, lines * line_bytes};
}

// What a record of the second ring names.
enum class ClearBy : std::uint16_t { location = 1, key = 2 };

struct StoreRings {
    RingMap values;
    RingMap clears;

    // Makes what is not there.
    static Result<StoreRings> open(std::string_view name, const StoreOptions& options,
                                   Deadline deadline);
    static std::string clears_name(std::string_view name);
};

}  // namespace rollring
