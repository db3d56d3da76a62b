#include "ranks.hpp"

#include <fmt/core.h>

#include <utility>

#include "control_socket.hpp"
#include "doorbell.hpp"
#include "fault_point.hpp"

namespace rollring::weights {
namespace {

Result<RanksLink> gone(std::string message) {
    return refused(Errc::peer_gone, std::move(message));
}

// Takes a rank. The vote of an earlier holder of the rank is not ours: it must be gone by the time
// that this process counts as alive, and must stay if that holder lives. Only the holder of the
// second byte takes the first, so no other process can do so between the check and the lock.
Result<LifeLock> become(const PeerControl& control, std::uint32_t rank) {
    const int fd = control.memory().fd();
    const auto here_already = [&] {
        return refused(Errc::busy, fmt::format("rank {} is already connected", rank));
    };
    const auto joining = LifeLock::take(fd, LifeByte::joining(rank));
    if (!joining) return std::unexpected(joining.error());
    if (!*joining || alive(fd, LifeByte::rank(rank))) return here_already();
    store_release(control.ranks_page().ranks[rank].staged, std::int64_t{-1});
    store_release(control.ranks_page().ranks[rank].begun, std::int64_t{-1});
    auto life = LifeLock::take(fd, LifeByte::rank(rank));
    if (!life) return std::unexpected(life.error());
    if (!*life) return here_already();
    return std::move(**life);
}

}  // namespace

RanksLink::RanksLink(const OwnControl& own)
    : own_(&own),
      page_(&own.ranks_page()),
      bell_(&own.bell(ControlOffsets::publisher_bell())),
      bells_(bell_),
      offsets_(own.offsets()) {}

Result<RanksLink> RanksLink::join(std::string_view ring, const Self& self, Deadline deadline) {
    const auto [rank, ranks, ring_id, token] = self;
    Result<Fd> socket = connect_to(ring, 0);
    while (!socket && socket.error().code == Errc::not_found) {
        if (deadline.passed()) {
            return refused(Errc::timed_out,
                           fmt::format("rank {} waits for rank 0 of {}, which has not connected",
                                       rank, ranks));
        }
        nap();
        socket = connect_to(ring, 0);
    }
    if (!socket) return std::unexpected(socket.error());
    Message hello = make_message(MessageKind::hello_rank);
    hello.ring_id = ring_id;
    hello.token = token;
    hello.rank = rank;
    if (auto sent = send_message(socket->get(), hello); !sent) return gone(sent.error().message);
    auto received = receive_message(socket->get(), deadline);
    if (!received) return std::unexpected(received.error());
    if (received->message.kind != MessageKind::welcome || received->fds.empty()) {
        return gone("rank 0 refused this rank: " + text_of(received->message));
    }
    auto control =
        PeerControl::accept(std::move(received->fds[0]), received->message.control_bytes);
    if (!control) return std::unexpected(control.error());
    if (control->header().ranks != ranks || control->header().rank != 0) {
        return refused(Errc::invalid_argument,
                       fmt::format("rank {} expects {} ranks, rank 0 expects {}", rank, ranks,
                                   control->header().ranks));
    }
    if (auto taken = control->take_rank(); !taken) return std::unexpected(taken.error());
    auto life = become(*control, rank);
    if (!life) return std::unexpected(life.error());
    RanksLink made;
    made.peer_ = std::move(*control);
    made.socket_ = ProcessFd(std::move(*socket));
    made.life_ = std::move(*life);
    made.page_ = &made.peer_->ranks_page();
    made.offsets_ = made.peer_->offsets();
    made.bells_ = &made.peer_->bell(0);
    made.bell_ = &made.peer_->bell(made.offsets_.rank_bell(rank));
    made.rank_ = rank;
    store_release(made.page_->ranks[rank].joined, 1U);
    return made;
}

void RanksLink::begin(std::int64_t version) const {
    store_release(page_->ranks[rank_].begun, version);
    ring_all();
}

bool RanksLink::is_overtaken(std::int64_t version) const {
    if (const auto known = decision(version)) return known == Outcome::aborted;
    return has_begun_later(version);
}

bool RanksLink::has_begun_later(std::int64_t version) const {
    for (std::uint32_t rank = 0; rank < offsets_.ranks; rank++) {
        if (observe(page_->ranks[rank].begun) > version) return true;
    }
    return false;
}

void RanksLink::vote(std::int64_t version) const {
    store_release(page_->ranks[rank_].staged, version);
    ring_plain(bells_[0]);
}

std::optional<Outcome> RanksLink::decision(std::int64_t version) const {
    return decided(*page_, version);
}

Outcome RanksLink::decide(std::int64_t version, Outcome outcome) const {
    if (rollring::weights::decide(*page_, version, outcome)) {
        ring_all();
        return outcome;
    }
    return decision(version).value_or(Outcome::aborted);
}

bool RanksLink::rank_alive(std::uint32_t rank) const {
    return rollring::alive(own_->memory().fd(), LifeByte::rank(rank));
}

std::string RanksLink::missing(std::int64_t version) const {
    std::string text;
    for (std::uint32_t rank = 1; rank < offsets_.ranks; rank++) {
        const std::int64_t staged = observe(page_->ranks[rank].staged);
        const bool lives = rank_alive(rank);
        if (staged == version && lives) continue;
        text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
        if (staged >= 0 && lives) text += fmt::format(" (at version {})", staged);
    }
    return text;
}

std::optional<std::uint32_t> RanksLink::ahead(std::int64_t version) const {
    for (std::uint32_t rank = 1; rank < offsets_.ranks; rank++) {
        if (observe(page_->ranks[rank].staged) > version && rank_alive(rank)) return rank;
    }
    return {};
}

std::int64_t RanksLink::version_of_rank_0() const {
    if (!peer_) return -1;
    const PublisherPage& page = peer_->publisher();
    const std::uint64_t publication = observe(page.publication);
    const auto begun = look_up(page, publication);
    return publication != 0 && begun ? begun->version : -1;
}

std::string RanksLink::dead() const {
    std::string text;
    for (std::uint32_t rank = 1; rank < offsets_.ranks; rank++) {
        if (observe(page_->ranks[rank].joined) == 0 || rank_alive(rank)) continue;
        text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
    }
    return text;
}

std::int64_t RanksLink::id() const {
    return peer_ ? peer_->header().created_ns : own_->created_ns();
}

bool RanksLink::alive() const {
    return !peer_ || (observe(peer_->publisher().closed) == 0 &&
                      rollring::alive(peer_->memory().fd(), LifeByte::publisher()));
}

void RanksLink::ring_all() const {
    ring_plain(bells_[0]);
    for (std::uint32_t rank = 0; rank < offsets_.ranks; rank++) {
        ring_plain(bells_[offsets_.rank_bell(rank) / sizeof(Bell)]);
    }
}

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

void Ranks::start(std::int64_t version, bool sharded) {
    if (self_.ranks == 1) return;
    rank_0_died_ = link_ && !link_->alive();
    if (rank_0_died_) link_.reset();
    if (sharded || rank_0_died_) static_cast<void>(meet(Deadline::after_ms(1000)));
    if (sharded && link_) link_->begin(version);
}

Result<void> Ranks::decide(Deadline deadline) {
    if (self_.ranks == 1) return {};
    if (rank_0_died_ && !link_) {
        return refused(Errc::peer_gone,
                       fmt::format("version {}: rank 0 ended before this version, and no other has "
                                   "come in its place",
                                   publication_->version()));
    }
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
        return missing.empty() || !dead.empty() || ahead || link_->decision(version) ||
               link_->is_overtaken(version);
    };
    if (!seats_->wait_at(link_->bell(), deadline, known)) {
        return publication_->silent("staged it", "ranks " + missing);
    }
    if (!dead.empty() && !link_->decision(version)) {
        return refused(
            Errc::peer_gone,
            fmt::format("version {}: ranks {} ended before they had staged it", version, dead));
    }
    const bool overtaken = !missing.empty() && link_->is_overtaken(version);
    if ((ahead || overtaken) && !link_->decision(version)) {
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
