#pragma once
// Requests to roll back, from other processes: the publisher shows the last one, and each engine
// answers it in its own page.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "control.hpp"
#include "rollring/weight_delta.hpp"
#include "session.hpp"

namespace rollring::weights {

struct RollbackRequest {
    std::uint64_t number;
    std::int64_t version;  // that is to be left
};

// The last request; empty if there is none, or another one is just being written.
std::optional<RollbackRequest> shown_request(const PublisherPage& page);

// Why an engine cannot leave a version.
std::string why_no_way_back(const Holding& holding);

// The engine's answer.
void answer_request(SubscriberPage& page, std::uint64_t number, RollbackOutcome outcome,
                    std::string_view why);

}  // namespace rollring::weights
