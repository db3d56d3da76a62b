#pragma once
// The actions and observations of a run, for programs and for people.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "driver.hpp"

namespace rollring::test {

nlohmann::ordered_json report(const Driver& driver);
void print(const nlohmann::ordered_json& out, bool json);
// Counts that are too low for the run to prove anything, in words.
std::vector<std::string> below_floors(const Options& options, const Driver& driver);

}  // namespace rollring::test
