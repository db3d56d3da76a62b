// Versions that a publisher sends again.

#include <fmt/core.h>

#include <algorithm>

#include "publisher_impl.hpp"
#include "version_range.hpp"

namespace rollring::weights {

Result<void> PublisherImpl::begin_again() {
    if (auto ours = check_process(); !ours) return ours;
    if (publication_.is_open() || is_decided_) return still_open();
    if (publication_.committed() < 0) {
        return refused(Errc::invalid_argument, "there is no committed version to send again");
    }
    if (is_sharded() && !seats_.committed_slots().empty()) {
        return refused(Errc::unsupported,
                       "a rank with a layout offers the committed version again by itself, from "
                       "its slots, to each engine that lacks it");
    }
    open_publication(publication_.committed(), true);
    return {};
}

Result<void> PublisherImpl::resume(std::int64_t version) {
    if (auto ours = check_process(); !ours) return ours;
    if (publication_.is_open() || is_decided_) return still_open();
    if (auto fine = check_version(version); !fine) return fine;
    if (version < 0 || version < link_.version()) {
        return refused(Errc::stale_version, fmt::format("version {} is below {}, which ring {} has",
                                                        version, link_.version(), ring_name_));
    }
    begun_version_ = std::max(begun_version_, version);
    // Engines of a sharded trainer ask the ring whether a version is that of their rank 0.
    if (is_sharded() && options_.rank == 0) link_.inherit(version, publication_.ranks_id());
    publication_.resume(version);
    return {};
}

// This concerns only this rank and its subscribers: no other rank is asked.
bool PublisherImpl::is_again() const {
    return publication_.is_open() && publication_.version() == publication_.committed();
}

void PublisherImpl::offer_again() {
    const auto slots = seats_.committed_slots();
    if (publication_.committed() < 0 || slots.size() != packing().parts.size()) return;
    const std::uint64_t first = publication_.next_part_number();
    publication_.begin(publication_.committed(), slots.size());
    for (std::uint32_t part = 0; part < slots.size(); part++) {
        publication_.part_filled(publication_.place_part(part, slots[part]));
    }
    publication_.all_put();
    publication_.commit();
    seats_.offer_again(publication_, slots, first);
    seats_.close(true);
}

}  // namespace rollring::weights
