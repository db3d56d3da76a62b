// The lie "wedge": a stash that acts by fractions of a lane, as it did before producers could say
// for how much they wait: it makes room only where more than half of a lane is pinned, and stops
// there. Linked with the option --wrap, so that the library needs no hook for it.

#include "wedge.hpp"

#include <algorithm>

#include "group_room.hpp"

namespace rollring {

// NOLINTNEXTLINE(misc-use-internal-linkage): the linker has it under another name
Wish honest_wish_of(const RingMap& map,
                    std::uint32_t lane) asm("__real__ZN8rollring7wish_ofERKNS_7RingMapEj");
// NOLINTNEXTLINE(misc-use-internal-linkage): other files call it by its name for the linker
Wish wedged_wish_of(const RingMap& map,
                    std::uint32_t lane) asm("__wrap__ZN8rollring7wish_ofERKNS_7RingMapEj");

// NOLINTNEXTLINE(misc-use-internal-linkage): see above
Wish wedged_wish_of(const RingMap& map, std::uint32_t lane) {
    Wish wish = honest_wish_of(map, lane);
    if (wish.room_bytes == 0) return wish;
    const std::uint64_t half = map.geometry().lane_bytes / 2;
    const std::uint64_t pinned = observe(map.owner(lane).tail) - observe(map.entry(lane).head);
    wish.room_bytes = pinned > half ? std::min(wish.room_bytes, half) : 0;
    return wish;
}

}  // namespace rollring

namespace rollring::test {

void wedge_is_linked() {}

}  // namespace rollring::test
