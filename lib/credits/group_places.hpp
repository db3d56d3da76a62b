#pragma once
// The bound on open groups, as producers and the stash read it alike: who may open a group, and who
// will wait for one to end (lib/credits/admission.hpp).

#include <algorithm>
#include <cstdint>

#include "ring_map.hpp"

namespace rollring {

// Counting costs a miss per lane, so where the bound is far larger than the number of lanes, each
// producer takes some places at once; what all of them may have taken so stays below the bound.
constexpr std::uint64_t places_at_once(std::uint64_t bound, std::uint64_t lanes) {
    return std::min(std::uint64_t{16}, bound / 64 / lanes);
}

// The highest bound where it takes none at once.
constexpr std::uint64_t places_one_by_one(std::uint64_t lanes) {
    return 64 * lanes - 1;
}

// `taken`: groups that are open, or announced.
constexpr bool places_are_taken(std::uint64_t taken, std::uint64_t bound, std::uint64_t lanes) {
    return bound != 0 && taken + places_at_once(bound, lanes) * lanes >= bound;
}

// Groups that a lane's producer announced and of which nothing has arrived. A lane that says more
// than any bound allows announces none: `bound` is that of now, and without a trainer, before this
// one or before it came, as many groups could be opened as the board has rows.
inline std::uint64_t announced_groups(const RingMap& map, std::uint32_t lane, std::uint64_t bound) {
    const std::uint64_t opened = peek(map.owner(lane).groups_opened);
    const std::uint64_t arrived = observe(map.entry(lane).groups_arrived);
    const std::uint64_t most = std::max<std::uint64_t>(bound, map.geometry().group_rows);
    return opened <= arrived || opened - arrived > most ? 0 : opened - arrived;
}

// Whether a lane may have claimed so much: what no room would allow, somebody has written over it.
// Far more than there could ever be for one group: what is only tried counts, too, on top of what
// stands, and what is not believed leaves room to others.
constexpr bool claim_is_sound(std::uint64_t claimed_bytes, std::uint64_t most_bytes) {
    return claimed_bytes / 4 <= most_bytes;
}

}  // namespace rollring
