#pragma once
// The questions of rollring-bench: the options of each, their defaults, and the function that
// answers it.

#include <cstdint>
#include <string>
#include <vector>

#include "bench.hpp"

namespace bench {

struct ThroughputQuestion {
    Common common;
    std::vector<std::uint32_t> tokens = {256, 2048, 16'384, 131'072};
    std::string lane_bytes = "64MiB";
    std::string soft_bytes = "4MiB";
    std::string routed_experts = "131072x61x8";
    std::uint64_t records = 0;
    std::uint32_t batch = 1;
    bool wait = false;
};
void run(const ThroughputQuestion& options);

struct SoftwrapQuestion {
    Common common;
    std::vector<std::uint32_t> tokens = {128, 512, 2048};
    std::string lane_bytes = "64MiB";
    std::string soft_bytes = "4MiB";
    std::uint64_t records = 0;
};
void run(const SoftwrapQuestion& options);

struct TapsQuestion {
    Common common;
    std::vector<std::uint32_t> tokens = {2048, 16'384};
    std::uint32_t taps = 5;
    std::string lane_bytes = "64MiB";
    std::string soft_bytes = "4MiB";
};
void run(const TapsQuestion& options);

struct ViewersQuestion {
    Common common = {.repeat = 20, .seconds = 1};  // rounds, and seconds of each of their halves
    std::vector<std::uint32_t> tokens = {2048, 16'384};
    std::uint32_t viewers = 5;
    std::string lane_bytes = "64MiB";
    std::string soft_bytes = "4MiB";
    std::string python = "python3";
    std::string script = ROLLRING_VIEWER_SCRIPT;
};
void run(const ViewersQuestion& options);

// Long records, one at a time and far apart, as rollout workers send them.
struct PacedOptions {
    std::vector<std::uint32_t> lanes = {1, 64};  // of the ring
    std::uint32_t n_tokens = 2048;
    std::int64_t gap_us = 50;
    std::uint64_t records = 4000;

    // Runs in each round.
    [[nodiscard]] std::size_t steps() const { return 2 * lanes.size() + 3; }
};

struct LatencyQuestion {
    Common common;
    std::uint32_t n_tokens = 64;
    std::uint64_t records = 3000;     // of a light run
    std::int64_t spin_gap_us = 20;    // between records when the consumer spins
    std::int64_t sleep_gap_us = 200;  // and when it has fallen asleep
    std::vector<double> loads = {0.5, 0.8};
    PacedOptions paced;
    bool only_paced = false;
};
void run(const LatencyQuestion& options);

struct StashQuestion {
    Common common;
    std::vector<std::uint32_t> tokens = {2048, 64};
    std::vector<std::uint64_t> open_groups = {100, 1'000, 10'000, 100'000};
    std::uint32_t interleaved = 16;
    std::uint32_t batch = 32;
    std::string lane_bytes = "64MiB";
};
void run(const StashQuestion& options);

struct BatchesQuestion {
    Common common = {.repeat = 3, .seconds = 1};
    std::vector<std::uint32_t> tokens = {2048, 16'384};
    std::vector<std::uint32_t> producers = {1, 8};
    std::uint32_t groups = 32;  // of a batch
    std::string python = "python3";
    std::string script = ROLLRING_BATCHES_SCRIPT;
};
void run(const BatchesQuestion& options);

struct GatherQuestion {
    Common common = {.repeat = 5, .seconds = 0.2};
    std::vector<std::uint32_t> tokens = {256, 2048, 16'384, 131'072};
    std::vector<std::uint32_t> threads = {1, 4};
    std::string bytes = "256MiB";
};
void run(const GatherQuestion& options);

struct LedgerQuestion {
    Common common = {.seconds = 1};
    std::string directory;
    std::vector<std::string> parts = {"rates", "pushes", "restores", "peers"};
    std::vector<std::uint32_t> tokens = {2048, 16'384, 131'072};
    std::vector<std::string> durable = {"group", "record", "none"};
    double paced_load = 0.5;
    std::uint64_t batch_tokens = 2'097'152;  // 19 MB, whatever the length of a record
    std::string lane_bytes = "64MiB";
    std::string ledger_bytes = "4GiB";
};
void run(const LedgerQuestion& options);

struct PeersQuestion {
    Common common;
    std::vector<std::uint32_t> tokens = {2048};
    std::string queue_bytes = "4MiB";
    std::vector<std::string> wanted;
    std::string python = "python3";
    std::string script = ROLLRING_PEERS_SCRIPT;
    double quiet_line_ns = 150;
    double most_seconds = 20;
};
void run(const PeersQuestion& options);

struct ScalingQuestion {
    Common common = {.repeat = 3};
    std::vector<std::string> parts = {"producers", "records", "lanes", "small"};
    std::vector<std::uint32_t> producers = {1, 2, 4, 8, 16, 32, 64};
    std::vector<std::uint64_t> records = {1'000, 10'000, 100'000, 1'000'000, 10'000'000};
    std::vector<std::uint32_t> lanes = {1, 4, 16, 64, 256, 1024};
    std::vector<std::uint32_t> batches = {1, 8, 32, 128};
    std::uint32_t n_tokens = 2048;
    std::string soft_bytes = "0";
    std::string lane_bytes = "0";
};
void run(const ScalingQuestion& options);

struct WeightsQuestion {
    std::string list = "llama8b";
    std::string device = "auto";
    std::string memory = "automatic";
    std::string slot_bytes = "0";
    std::string scale = "auto";
    std::string print_list;
    std::string torch_script = ROLLRING_TORCH_SCRIPT;
    std::uint32_t slots = 0;
    std::int64_t spin_us = -1;  // 20, or 200 for the empty list
    std::uint64_t repeat = 0;   // 7, or 20,000 for the empty list
    std::uint64_t soak = 0;
    std::int64_t limit_s = 600;
    std::vector<double> changed;  // percent
    int torch_rounds = 0;
    bool checksums = false;
    bool cast = false;
    bool pause = false;
    bool json = false;
};
void run(const WeightsQuestion& options);

}  // namespace bench
