#pragma once
// The parts of random_kill.cpp: each throws a Failure when a promise is broken.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace rollring::test {

void kill_producers(std::uint64_t seed, std::uint64_t kills);
void kill_consumers(std::uint64_t seed, std::uint64_t kills);
// `long_too`: some for up to 20 s.
void stop_everyone(std::uint64_t seed, std::uint64_t rounds, bool long_too);

// The work of the processes that they start.
int stopping_producer_role(const std::vector<std::string>& arguments);
int stopping_consumer_role(const std::vector<std::string>& arguments);

}  // namespace rollring::test
