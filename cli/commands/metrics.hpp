#pragma once
// `rollring metrics`: its options, and its exports.

#include <string>
#include <vector>

#include "cli/commands/command.hpp"
#include "cli/formats/metric_set.hpp"

namespace rollring::cli {

struct MetricsOptions {
    std::vector<std::string> rings;  // empty: all
    std::string listen = "127.0.0.1:9464";
    std::string token;
    bool once = false;
    bool json = false;
};

MetricSet metrics_now(const std::vector<std::string>& rings);
// Serves until an interrupt, and returns the exit code.
int serve_metrics(const MetricsOptions& options);

}  // namespace rollring::cli
