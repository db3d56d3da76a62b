#pragma once
// The channel's tie to its ring: proof that both ends mean the same ring, and the policy version
// that producers stamp on rollouts.

#include <cstdint>
#include <string_view>

#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "segment.hpp"

namespace rollring::weights {

class RingLink {
  public:
    // Takes no lane and no seat of the ring. `writable`: for publishers.
    static Result<RingLink> attach(std::string_view ring, Deadline deadline, bool writable);

    [[nodiscard]] std::uint64_t ring_id() const { return segment_.header().ring_id; }
    // The secret of the ring's channel, made by its first publisher; 0: none so far. Every process
    // that can read the ring knows it.
    [[nodiscard]] std::uint64_t token() const { return page().channel_token; }
    [[nodiscard]] Result<std::uint64_t> make_token() const;
    [[nodiscard]] std::int64_t version() const { return observe(page().version); }
    // The commit itself: before it a version is not committed, afterwards it is, regardless of any
    // death. The publisher's ID distinguishes it from another publisher's version of the same
    // number. No effect if the ring has the version: any rank may be the first to know that all
    // have staged, and none is ahead of another here.
    void commit(std::int64_t version, std::int64_t publisher_created_ns) const {
        if (this->version() >= version) return;
        store_release(page().committed_by, publisher_created_ns);
        store_release(page().version, version);
    }
    // Another publisher goes on with the version that the ring has: from here on it is this one's.
    void inherit(std::int64_t version, std::int64_t publisher_created_ns) const {
        if (this->version() == version) store_release(page().committed_by, publisher_created_ns);
    }
    [[nodiscard]] bool committed(std::int64_t version, std::int64_t publisher_created_ns) const {
        return observe(page().version) == version &&
               observe(page().committed_by) == publisher_created_ns;
    }
    // not_found once the ring was removed.
    [[nodiscard]] Result<void> check() const;

  private:
    RingLink(Segment segment, Mapping mapping)
        : segment_(std::move(segment)), mapping_(std::move(mapping)) {}
    [[nodiscard]] PolicyPage& page() const { return mapping_.at<PolicyPage>(0); }
    Segment segment_;
    Mapping mapping_;
};

}  // namespace rollring::weights
