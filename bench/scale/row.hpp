#pragma once
// The settings of a run and its outcome, as rows.

#include "report.hpp"
#include "world.hpp"

namespace bench::scale {

Json row_of(const Settings& settings, const Outcome& outcome);

}  // namespace bench::scale
