#pragma once
// Stats as metrics, by the one table of their fields (rollring/stat.hpp): a counter's name
// ends in _total, times are in seconds, and names and states are labels of the stat's own
// `..._info`. A value that is unknown, or not there yet, has no sample.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/formats/metric_set.hpp"
#include "rollring/extras/requests.hpp"
#include "rollring/ring.hpp"
#include "rollring/stat.hpp"
#include "rollring/weights.hpp"

namespace rollring::cli {

// The stats of one ring that could be read; the others are empty.
struct RingLook {
    std::string ring;
    bool up = false;  // a ring of this name exists, and can be read
    RingStat stat = {};
    StashStat stash = {};
    RequestsStat requests = {};
    std::vector<WeightsStat> weights = {};
};

// All families, with the samples of these rings.
MetricSet metrics_of(const std::vector<RingLook>& rings, const SharedMemorySpace& space);

}  // namespace rollring::cli
