#pragma once
// Leaves with a publisher why an engine without a seat takes no version.

#include <string_view>

#include "ring_link.hpp"

namespace rollring::weights {

// On a connection that is new, or whose engine was welcomed and could not go on.
Result<void> tell_refusal(int socket, const RingLink& link, std::string_view name,
                          std::string_view why);

}  // namespace rollring::weights
