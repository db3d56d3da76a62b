#include "faults.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace rollring::test {
namespace {

struct FaultPoint {
    std::string_view name;
    std::string_view file;
};

constexpr auto all_points = std::to_array<FaultPoint>({
#ifdef ROLLRING_FAULT_POINTS
#include "fault_names.inc"
#endif
    {"", ""},  // an array has at least one
});

// Whose code it is. Rings are made and removed by the driver: those points belong to no role here.
// Nor does the hostile producer strike itself: each of its lives costs a lane for a while.
bool passes(Role role, std::string_view file) {
    static constexpr std::pair<Role, std::string_view> owners[] = {
        {Role::producer, "producer/"},
        {Role::trainer, "consumer/"},
        {Role::trainer, "stash/"},
        {Role::publisher, "lib/weights/publisher_impl.cpp"},
        {Role::publisher, "lib/weights/ranks.cpp"},
        {Role::publisher, "lib/weights/slot_filler.cpp"},
        {Role::subscriber, "lib/weights/session.cpp"},
        {Role::subscriber, "lib/weights/subscriber_impl.cpp"},
    };
    return std::ranges::any_of(owners, [&](const auto& owner) {
        return owner.first == role && file.starts_with(owner.second);
    });
}

}  // namespace

bool has_fault_points() {
    return all_points.size() > 1;
}

std::vector<std::string_view> points_of(Role role) {
    std::vector<std::string_view> names;
    for (const FaultPoint& point : all_points) {
        if (passes(role, point.file)) names.push_back(point.name);
    }
    std::ranges::sort(names);
    const auto same = std::ranges::unique(names);
    names.erase(same.begin(), same.end());
    return names;
}

std::optional<Fault> draw_fault(Role role, Dice& dice) {
    static const auto points = [] {
        std::array<std::vector<std::string_view>, static_cast<std::size_t>(Role::count)> all;
        for (std::size_t i = 0; i < all.size(); i++) all[i] = points_of(static_cast<Role>(i));
        return all;
    }();
    const auto& mine = points[static_cast<std::size_t>(role)];
    if (mine.empty() || dice.below(2) == 0) return std::nullopt;
    const std::string_view point = mine[dice.below(mine.size())];
    const std::uint64_t roll = dice.below(10);
    // Mostly early: many points are passed once in a life, and most lives are short.
    const std::uint64_t hit = 1 + dice.below(std::uint64_t{1} << dice.below(7));
    return Fault{.point = std::string(point),
                 .action = roll < 7   ? "kill"
                           : roll < 9 ? "stop"
                                      : "exit",
                 .hit = static_cast<int>(hit)};
}

}  // namespace rollring::test
