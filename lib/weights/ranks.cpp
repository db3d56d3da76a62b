#include "ranks.hpp"

#include <fmt/format.h>

#include <utility>

#include "fault_point.hpp"

namespace rollring::weights {

Ranks::Ranks(std::string ring, const RanksLink::Self& self, const OwnControl& control, Seats& seats,
             Publication& publication)
    : ring_name_(std::move(ring)), self_(self), seats_(&seats), publication_(&publication) {
    if (self.ranks > 1 && self.rank == 0) link_.emplace(control);
}

Result<void> Ranks::meet(Deadline deadline) {
    if (link_) return {};
    auto joined = RanksLink::join(ring_name_, self_, deadline);
    if (!joined) return std::unexpected(joined.error());
    link_ = std::move(*joined);
    publication_->set_ranks_id(link_->id());
    return {};
}

Result<void> Ranks::decide(Deadline deadline) {
    if (self_.ranks == 1) return {};
    if (auto met = meet(deadline); !met) return met;
    return self_.rank == 0 ? decide_all(deadline) : follow(deadline);
}

Result<void> Ranks::decide_all(Deadline deadline) {
    const std::int64_t version = publication_->version();
    std::string missing;
    std::string dead;
    std::optional<std::uint32_t> ahead;
    const auto known = [&] {
        missing = link_->missing(version);
        dead = missing.empty() ? "" : link_->dead();
        ahead = link_->ahead(version);
        return missing.empty() || !dead.empty() || ahead || link_->decision(version);
    };
    if (!seats_->wait_at(link_->bell(), deadline, known)) {
        return publication_->silent("staged it", "ranks " + missing);
    }
    if (!dead.empty() && !link_->decision(version)) {
        return refused(
            Errc::peer_gone,
            fmt::format("version {}: ranks {} ended before they had staged it", version, dead));
    }
    if (ahead && !link_->decision(version)) {
        return refused(Errc::aborted,
                       fmt::format("version {}: ranks {} are at a later version and never stage "
                                   "this one: begin the same version on all ranks",
                                   version, missing));
    }
    if (link_->decide(version, Outcome::committed) == Outcome::committed) return {};
    return refused(Errc::aborted, fmt::format("version {} was aborted by another rank", version));
}

Result<void> Ranks::follow(Deadline deadline) {
    const std::int64_t version = publication_->version();
    link_->vote(version);
    FAULT_POINT("weights.voted");
    std::int64_t leads = -1;
    const auto decided = [&] {
        leads = link_->version_of_rank_0();  // before its decision about ours
        return leads > version || link_->decision(version) || !link_->alive();
    };
    const bool done = seats_->wait_at(link_->bell(), deadline, decided);
    const auto decision = link_->decision(version);
    if (decision == Outcome::committed) return {};
    if (decision) {
        return refused(Errc::aborted,
                       fmt::format("version {} was aborted by another rank", version));
    }
    const std::string rank_0 =
        leads < 0 || leads == version ? "rank 0" : fmt::format("rank 0 (at version {})", leads);
    if (!done) return publication_->silent("decided", rank_0);
    if (leads > version) {
        return refused(Errc::aborted,
                       fmt::format("version {}: {} will not decide it: begin the same version on "
                                   "all ranks",
                                   version, rank_0));
    }
    link_.reset();
    return refused(Errc::peer_gone,
                   fmt::format("version {}: rank 0 ended before its decision", version));
}

bool Ranks::may_abort() {
    if (self_.ranks == 1) return true;
    // Not met yet, and rank 0, if it is there, would wait for our vote.
    static_cast<void>(meet(Deadline::after_ms(100)));
    // After a vote the others may have committed.
    return !link_ || link_->decide(publication_->version(), Outcome::aborted) != Outcome::committed;
}

}  // namespace rollring::weights
