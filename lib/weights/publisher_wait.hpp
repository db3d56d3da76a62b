#pragma once
// How a publisher waits: on its bell, dropping subscribers that are proven dead meanwhile.

#include "doorbell.hpp"
#include "publisher_impl.hpp"

namespace rollring::weights {

template <class Look>
bool PublisherImpl::wait(Bell& bell, Deadline deadline, const Look& look) {
    constexpr std::int64_t between_ns = 50'000'000;
    std::int64_t looked_ns = monotonic_ns();
    return wait_plain(bell, options_.spin_ns, deadline, [&] {
        if (look()) return true;
        if (const std::int64_t now = monotonic_ns(); now - looked_ns > between_ns) {
            looked_ns = now;
            seats_.drop_dead();
            return look();
        }
        return false;
    });
}

}  // namespace rollring::weights
