#pragma once
// What `rollring-bench weights` says about its sessions.

#include <string>
#include <vector>

#include "bench.hpp"
#include "weights_session.hpp"

namespace bench {

// What bench/torch_sync.py measured with one method.
struct TorchRow {
    std::string method;
    double ms;  // its median
    std::uint64_t bytes;
};

// Ends the program if python3, torch or a GPU is missing.
std::vector<TorchRow> run_torch(const std::string& script, const std::string& list_file, int repeat,
                                int gpu);

// One session and, in the same minute, the same work by torch.
struct Round {
    SessionReport session;
    std::vector<TorchRow> torch;
};

struct WeightsRun {
    SessionPlan plan;
    std::string device;  // its name and room
    std::vector<Round> rounds;
};

Json report_json(const WeightsRun& run);
std::string report_text(const WeightsRun& run);
// What makes the program fail: contents that differ, or what grew during a soak. Empty: all well.
std::string problem_of(const WeightsRun& run);

}  // namespace bench
