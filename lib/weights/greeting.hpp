#pragma once
// The first words of whoever connects to a publisher.

#include <string_view>

#include "control_socket.hpp"
#include "ring_link.hpp"

namespace rollring::weights {

// Says hello and hears the welcome, with two descriptors at least; a refusal is the error that it
// names.
Result<Received> greet(int socket, MessageKind kind, const RingLink& link, std::string_view name,
                       Deadline deadline);

}  // namespace rollring::weights
