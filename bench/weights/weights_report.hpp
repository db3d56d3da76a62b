#pragma once
// The report of `rollring-bench weights` about its sessions.

#include <string>
#include <vector>

#include "bench.hpp"
#include "weights/weights_session.hpp"

namespace bench {

// The figures of one method that bench/weights/torch_sync.py measured.
struct TorchRow {
    std::string method;
    double ms;  // its median
};

// One session and, in the same minute, the same work by torch.
struct Round {
    SessionReport session;
    std::vector<TorchRow> torch;
};

struct WeightsRun {
    SessionPlan plan;
    std::string device;  // its name and room
    std::vector<Round> rounds;
    std::vector<SessionReport> other_ways;  // beside one by difference
};

Json report_json(const WeightsRun& run);
// The reason for which the program fails: contents that differ, or growth during a soak. Empty: all
// well.
std::string problem_of(const WeightsRun& run);

}  // namespace bench
