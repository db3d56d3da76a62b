#pragma once
// The state that others find when a reader of shares has died: an image of the ring, in which its
// trainer has died, too, read by another reader and taken over by another trainer.

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "rollring/batch.hpp"
#include "rollring/stash.hpp"
#include "survivor.hpp"

namespace rollring::test {

// A batch that is leased and shared.
struct SharedBatch {
    std::uint64_t number = 0;  // that its tickets name it by
    std::string ticket;
    std::set<Id> ids;
};
// Of a ticket that a stash has made.
std::uint64_t number_of(const std::string& ticket);

// Whether a share's records are what they were pushed as; its ids.
std::set<Id> verified(const Sequences& share);

// Of pairs, in batches of two.
StashOptions pairs();

class ShareSurvivor {
  public:
    explicit ShareSurvivor(const RingOptions& options);

    // `shared`: the batches that another reader finds until a trainer comes. `held`: the records
    // that come to that, but for pairs of which one is missing.
    void recover(std::span<const std::byte> image, const std::vector<SharedBatch>& shared,
                 const std::set<Id>& held);
    [[nodiscard]] std::uint64_t recoveries() const { return recoveries_; }

  private:
    [[nodiscard]] Reader take_seat() const;
    // Each batch once in each way: read, refused to the ack while it is, acknowledged.
    void drain(Stash& stash, Reader& reader, const std::set<Id>& held) const;

    ScratchRing ring_;
    Segment segment_;
    Mapping memory_;
    std::uint64_t recoveries_ = 0;
};

}  // namespace rollring::test
