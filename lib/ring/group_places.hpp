#pragma once
// The bound on open groups, as producers and the stash read it alike: who may open a group, and who
// will wait for one to end (producer/admission.hpp).

#include <algorithm>
#include <cstdint>

namespace rollring {

// Counting costs a miss per lane, so where the bound is far larger than the number of lanes, each
// producer takes some places at once; what all of them may have taken so stays below the bound.
constexpr std::uint64_t places_at_once(std::uint64_t bound, std::uint64_t lanes) {
    return std::min(std::uint64_t{16}, bound / 64 / lanes);
}

// `taken`: groups that are open, or announced.
constexpr bool places_are_taken(std::uint64_t taken, std::uint64_t bound, std::uint64_t lanes) {
    return bound != 0 && taken + places_at_once(bound, lanes) * lanes >= bound;
}

// Whether a lane may have claimed so much: what no room would allow, somebody has written over it.
// Far more than there could ever be for one group: what is only tried counts, too, on top of what
// stands, and what is not believed leaves room to others.
constexpr bool claim_is_sound(std::uint64_t claimed_bytes, std::uint64_t most_bytes) {
    return claimed_bytes / 4 <= most_bytes;
}

}  // namespace rollring
