#pragma once
// One run per fault: a victim that strikes itself, live peers, and the invariants that must hold
// afterwards.

#include <cstdint>
#include <map>
#include <string>

#include "weights_roles.hpp"

namespace rollring::test {

struct FaultCase {
    std::string plan;  // of the victim: POINT:ACTION:HIT
    bool stop;
    bool closing;  // it is on its way out and is not missed
    std::uint32_t victim;
};

struct Totals {
    std::uint64_t syncs = 0;
    std::uint64_t resent = 0;
    std::uint64_t poisoned = 0;
    std::uint64_t kept_old = 0;
    std::uint64_t expelled = 0;
    std::map<Errc, std::uint64_t> told;
    void add(Board& board);
};

// Throw Failure unless all held; or if the point was not hit.
void strike_engine(const FaultCase& fault, const Crew& crew, Totals& totals);
void strike_trainer(const FaultCase& fault, const Crew& crew, Totals& totals);

}  // namespace rollring::test
