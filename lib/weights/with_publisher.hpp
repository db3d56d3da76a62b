#pragma once
// Attempts to reach publishers that may be about to come.

#include <fmt/core.h>

#include <type_traits>

#include "control_socket.hpp"
#include "greeting.hpp"
#include "ring_link.hpp"
#include "rollring/weights.hpp"

namespace rollring::weights {

// Waits for a ring that is about to be made as well.
inline Result<RingLink> attach_ring(std::string_view ring, Patience& patience) {
    for (;;) {
        auto link = RingLink::attach(ring, patience.piece(), false);
        if (link) return link;
        const bool absent =
            link.error().code == Errc::not_found || link.error().code == Errc::not_ready;
        if (!absent || patience.over()) return link;
    }
}

// Retries `meet` until there is a publisher: one may be about to come, or have just gone.
template <class Try>
std::invoke_result_t<Try, RingLink, Patience&> with_publisher(std::string_view ring,
                                                              const SubscriberOptions& options,
                                                              Deadline deadline, const Try& meet) {
    Patience patience(deadline, &options.keep_waiting);
    for (;;) {
        auto link = attach_ring(ring, patience);
        if (!link) return std::unexpected(link.error());
        auto met = meet(std::move(*link), patience);
        if (met) return met;
        const bool absent =
            met.error().code == Errc::not_found || met.error().code == Errc::peer_gone;
        if (!absent) return met;
        if (patience.over()) {
            return refused(
                Errc::timed_out,
                fmt::format("no publisher for '{}' appeared on ring {} by the deadline ({})",
                            options.name, ring, met.error().message));
        }
        nap();
    }
}

}  // namespace rollring::weights
