#include "ring_link.hpp"

#include <fmt/core.h>
#include <sys/random.h>

#include <cerrno>

namespace rollring::weights {

Result<RingLink> RingLink::attach(std::string_view ring, Deadline deadline, bool writable) {
    auto segment =
        Segment::attach(ring, deadline, writable ? Access::read_write : Access::read_only);
    if (!segment) return std::unexpected(segment.error());
    auto mapping = segment->map(segment->geometry().policy_offset(), page_bytes, writable);
    if (!mapping) return std::unexpected(mapping.error());
    return RingLink(std::move(*segment), std::move(*mapping));
}

Result<void> RingLink::check() const {
    if (segment_.linked()) return {};
    return refused(Errc::not_found,
                   fmt::format("ring {} was removed: create it again, and a new publisher on it",
                               segment_.ring()));
}

Result<std::uint64_t> RingLink::make_token() const {
    std::uint64_t fresh = 0;
    while (fresh == 0) {
        if (getrandom(&fresh, sizeof fresh, 0) < 0 && errno != EINTR) {
            return failed(Errc::system, errno, "the system provides no random bytes");
        }
    }
    std::uint64_t seen = 0;
    return page().channel_token.compare_exchange_strong(seen, fresh) ? fresh : seen;
}

}  // namespace rollring::weights
