#pragma once
// The bound on open groups, read alike by producers and the stash: whether a producer may open a
// group, or waits for one to end (lib/credits/admission.hpp).

#include <algorithm>
#include <cstdint>

#include "ring_map.hpp"

namespace rollring {

// Counting costs a miss per lane, so if the bound is far larger than the number of lanes, each
// producer takes several places at once; all places that may be taken so stay below the bound.
constexpr std::uint64_t places_at_once(std::uint64_t bound, std::uint64_t lanes) {
    return std::min(std::uint64_t{16}, bound / 64 / lanes);
}

// The highest bound at which places are taken one by one.
constexpr std::uint64_t places_one_by_one(std::uint64_t lanes) {
    return 64 * lanes - 1;
}

// `taken`: groups that are open or announced.
constexpr bool places_are_taken(std::uint64_t taken, std::uint64_t bound, std::uint64_t lanes) {
    return bound != 0 && taken + places_at_once(bound, lanes) * lanes >= bound;
}

// Groups that a lane's producer has announced, and of which nothing has arrived. A count above
// every possible bound is damaged, and counts as 0: above the present bound, and above the rows of
// the board, which limit the groups before a trainer attaches.
inline std::uint64_t announced_groups(const RingMap& map, std::uint32_t lane, std::uint64_t bound) {
    const std::uint64_t opened = peek(map.owner(lane).groups_opened);
    const std::uint64_t arrived = observe(map.entry(lane).groups_arrived);
    const std::uint64_t most = std::max<std::uint64_t>(bound, map.geometry().group_rows);
    return opened <= arrived || opened - arrived > most ? 0 : opened - arrived;
}

// Whether a lane's claim is plausible; a claim that no room would allow was overwritten, and is
// ignored. The limit is several times the most that one group could have, because tentative claims
// are stored too, beside those that stand.
constexpr bool claim_is_sound(std::uint64_t claimed_bytes, std::uint64_t most_bytes) {
    return claimed_bytes / 4 <= most_bytes;
}

}  // namespace rollring
