#pragma once
// What the other ranks have to say about a version of this one: nothing, where there is one rank.

#include <cstdint>
#include <optional>
#include <string>

#include "publication.hpp"
#include "ranks_link.hpp"
#include "seats.hpp"

namespace rollring::weights {

class Ranks {
  public:
    // All that it is given outlives it.
    Ranks(std::string ring, const RanksLink::Self& self, const OwnControl& control, Seats& seats,
          Publication& publication);

    // This rank has the version staged: waits until it is committed, by all. timed_out (may be
    // called again), peer_gone, aborted.
    Result<void> decide(Deadline deadline);
    // This rank wants to abort the version. False: the others have committed it, and so does it.
    bool may_abort();

  private:
    Result<void> meet(Deadline deadline);
    Result<void> decide_all(Deadline deadline);  // rank 0
    Result<void> follow(Deadline deadline);      // any other

    std::string ring_name_;
    RanksLink::Self self_;
    Seats* seats_;
    Publication* publication_;
    std::optional<RanksLink> link_;  // from the first meeting on
};

}  // namespace rollring::weights
