#pragma once
// What a run was given, and what came out, as rows.

#include "report.hpp"
#include "world.hpp"

namespace bench::scale {

Json row_of(const Settings& settings, const Outcome& outcome);

}  // namespace bench::scale
