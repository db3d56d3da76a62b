#pragma once
// The first words of whoever connects to a publisher.

#include <string_view>

#include "control_socket.hpp"
#include "manifest.hpp"
#include "patience.hpp"
#include "ring_link.hpp"

namespace rollring::weights {

// Says hello and hears the welcome, with two descriptors at least; a refusal is the error that it
// names.
Result<Received> greet(int socket, MessageKind kind, const RingLink& link, std::string_view name,
                       Patience& patience);

// The manifest that a welcome brings; bad_manifest.
Result<Manifest> manifest_of(Received& welcome);

}  // namespace rollring::weights
