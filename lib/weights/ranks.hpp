#pragma once
// Several publishers (trainer ranks) that commit one version together: their view of each other,
// and the decision.

#include <cstdint>
#include <optional>
#include <string>

#include "control_map.hpp"
#include "liveness.hpp"
#include "publication.hpp"
#include "rollring/time.hpp"
#include "seats.hpp"

namespace rollring::weights {

// Rank 0 keeps the ranks page; each rank votes there when all its subscribers have staged, and one
// word holds the decision: the first swap decides, so that no rank commits a version that another
// one aborts. Two-phase commit after Gray, "Notes on data base operating systems", 1978, with the
// coordinator's log in shared memory.
class RanksLink {
  public:
    // For rank 0, on its own page.
    explicit RanksLink(const OwnControl& own);
    // A rank's introduction.
    struct Self {
        std::uint32_t rank;
        std::uint32_t ranks;
        std::uint64_t ring_id;
        std::uint64_t token;
    };
    // Connects to rank 0, waiting for it until the deadline.
    static Result<RanksLink> join(std::string_view ring, const Self& self, Deadline deadline);

    // This rank begins a version, and so never votes for an earlier one.
    void begin(std::int64_t version) const;
    // Whether a version can no longer be committed: it was aborted, or a rank has begun another.
    [[nodiscard]] bool is_overtaken(std::int64_t version) const;
    [[nodiscard]] bool has_begun_later(std::int64_t version) const;  // any rank
    void vote(std::int64_t version) const;
    // The decision about a version, once there is one.
    [[nodiscard]] std::optional<Outcome> decision(std::int64_t version) const;
    // Decides unless it is decided; returns the decision.
    Outcome decide(std::int64_t version, Outcome outcome) const;
    // The ranks whose vote for exactly this version is missing, by number, with their present
    // version; the vote of a dead rank does not count. For rank 0.
    [[nodiscard]] std::string missing(std::int64_t version) const;
    // A rank that has a later version, and so never votes for this one; for rank 0.
    [[nodiscard]] std::optional<std::uint32_t> ahead(std::int64_t version) const;
    // The version that rank 0 has begun last; -1: none, or unknown. For any other rank.
    [[nodiscard]] std::int64_t version_of_rank_0() const;
    // The ranks that were connected and are proven dead, by number; for rank 0.
    [[nodiscard]] std::string dead() const;
    // Stamps a commit: the same for all present ranks.
    [[nodiscard]] std::int64_t id() const;
    // False if rank 0 is proven dead or closed.
    [[nodiscard]] bool alive() const;
    // The bell that this rank sleeps on.
    [[nodiscard]] Bell& bell() const { return *bell_; }

  private:
    RanksLink() = default;
    void ring_all() const;
    [[nodiscard]] bool rank_alive(std::uint32_t rank) const;

    const OwnControl* own_ = nullptr;  // rank 0's
    std::optional<PeerControl> peer_;  // of any other rank
    ProcessFd socket_;
    std::optional<LifeLock> life_;
    RanksPage* page_ = nullptr;
    Bell* bell_ = nullptr;
    Bell* bells_ = nullptr;  // of all
    ControlOffsets offsets_{};
    std::uint32_t rank_ = 0;
};

// The other ranks' part in the decision about a version of this one; with one rank there is none.
class Ranks {
  public:
    // All arguments must outlive this object.
    Ranks(std::string ring, const RanksLink::Self& self, const OwnControl& control, Seats& seats,
          Publication& publication);

    // Before a version: forgets a rank 0 that is gone, so that its successor decides. `sharded`:
    // meets rank 0 if it is there, and tells all ranks of the version: engines need all ranks for
    // it, so a rank that went on alone would wait for them in vain.
    void start(std::int64_t version, bool sharded);
    // Whether the open version can no longer be committed; or, once more, be sent by all ranks.
    [[nodiscard]] bool is_overtaken(bool again) const {
        if (!link_) return false;
        const std::int64_t version = publication_->version();
        return again ? link_->has_begun_later(version) : link_->is_overtaken(version);
    }
    // This rank has the version staged: waits until all ranks have committed it. timed_out (can be
    // retried), peer_gone, aborted.
    Result<void> decide(Deadline deadline);
    // This rank wants to abort the version. False: the others have committed it, so this rank must
    // do so, too.
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
    bool rank_0_died_ = false;       // between the version before and this one
};

}  // namespace rollring::weights
