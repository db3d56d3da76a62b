#pragma once
// `rollring ls`, `stat` and `doctor`: looking at rings from outside, read-only.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands/command.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {

// doctor's verdict on one object.
enum class Verdict {
    healthy,   // in use, or sound, empty and idle
    kept,      // not in use, with records: never removed by doctor
    leftover,  // not in use, and unfinished, damaged or without its owner: --fix removes it
    problem,   // for a person to decide
};
Verdict judge(const RingDiagnosis& diagnosis);

}  // namespace rollring::cli
