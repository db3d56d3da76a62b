#pragma once
// Stats as metrics, by the one table of their fields (rollring/stat_fields.hpp): a counter's name
// ends in _total, times are in seconds, and what is a name or a state is a label of the stat's own
// `..._info`. What is not known, or not there yet, has no sample.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/formats/metric_set.hpp"
#include "rollring/extras/requests.hpp"
#include "rollring/ring.hpp"
#include "rollring/stash_stat.hpp"
#include "rollring/weights.hpp"

namespace rollring::cli {

// What was seen of one ring. What could not be seen is not there.
struct RingLook {
    std::string ring;
    bool up = false;  // a ring of this name is there, and can be looked at
    RingStat stat = {};
    StashStat stash = {};
    RequestsStat requests = {};
    std::vector<WeightsStat> weights = {};
};

// All families that there are, with the samples of these rings.
MetricSet metrics_of(const std::vector<RingLook>& rings, const SharedMemorySpace& space);

}  // namespace rollring::cli
