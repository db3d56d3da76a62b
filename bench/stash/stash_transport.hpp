#pragma once
// A stash that hands out each record as a group of its own: the loop of rollring's peers in Python.

#include "workload.hpp"

namespace bench {

// In a ring that is made anew for each run.
Measured measure_stash_loop(const Plan& plan, const Cpus& cpus);

}  // namespace bench
