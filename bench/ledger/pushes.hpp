#pragma once
// How long a push takes while the ledger's disk has time to spare.

#include "ledger/training.hpp"

namespace bench {

struct Pushes {
    double p50_ns = 0;
    double p99_ns = 0;
};
// Records come one every `gap_ns`. Zeros: interrupted.
Pushes time_pushes(const Training& training, const Plan& plan, std::int64_t gap_ns,
                   const Cpus& cpus);

}  // namespace bench
