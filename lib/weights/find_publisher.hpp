#pragma once
// Finds the publisher of a ring that a subscriber belongs to.

#include <cstdint>
#include <string>
#include <string_view>

#include "backend.hpp"
#include "control_socket.hpp"
#include "gpus.hpp"
#include "greeting.hpp"
#include "ring_link.hpp"
#include "rollring/weights.hpp"

namespace rollring::weights {

// By options.rank; otherwise the one on the same GPU; otherwise the only one, if there is one rank
// only. not_found: the right one may be about to come. Asks as an observer, so that no publisher
// takes it for an engine that attaches.
Result<std::uint32_t> find_publisher(std::string_view ring, const SubscriberOptions& options,
                                     const RingLink& link, const device::Gpus& gpus,
                                     Patience& patience);

// For the error about a taken rank: ": 'trainer' (pid 7); ...", and the next step.
std::string who_publishes(std::string_view ring, std::uint32_t rank, const RingLink& link);

// Whether the publisher of this welcome is on the same GPU.
bool is_on_gpu(const Message& welcome, Device device, const device::Gpus& gpus);

}  // namespace rollring::weights
