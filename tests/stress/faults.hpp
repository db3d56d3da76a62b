#pragma once
// Where a process is to strike itself: at a fault point of the library that its role passes. Only
// a build with -Dfault_points=true has any.

#include <optional>
#include <string_view>
#include <vector>

#include "crash/fault_runs.hpp"
#include "oracle.hpp"

namespace rollring::test {

bool has_fault_points();
// Sorted; of the points in the library's sources.
std::vector<std::string_view> points_of(Role role);
// Where one life of the role strikes itself, if it does.
std::optional<Fault> draw_fault(Role role, Dice& dice);

}  // namespace rollring::test
