#include "rollback_request.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "channel_names.hpp"
#include "control_map.hpp"
#include "greeting.hpp"
#include "liveness.hpp"
#include "rollring/weights.hpp"

namespace rollring {
namespace weights {

std::optional<RollbackRequest> shown_request(const PublisherPage& page) {
    const std::uint64_t number = observe(page.asked);
    const std::int64_t version = observe(page.asked_version);
    if (number == 0 || observe(page.asked) != number) return {};
    return RollbackRequest{number, version};
}

void answer_request(SubscriberPage& page, std::uint64_t number, RollbackOutcome outcome,
                    std::string_view why) {
    page.answer_why.store(why);
    store_release(page.answer, static_cast<std::uint32_t>(outcome));
    store_release(page.answered, number);
}

namespace {

// The engines of one publisher that were attached when it was asked.
class AskedRank {
  public:
    static Result<AskedRank> ask(std::string_view ring, std::uint32_t rank, const RingLink& link);

    [[nodiscard]] std::int64_t version() const { return request_.version; }
    // Their answers so far.
    [[nodiscard]] std::vector<RollbackAnswer> answers() const;

  private:
    struct Engine {
        std::uint32_t seat;
        std::uint64_t epoch;
        bool operator==(const Engine&) const = default;
    };
    AskedRank(std::uint32_t rank, PeerControl control)
        : rank_(rank), control_(std::move(control)) {}
    // Those that are attached now, once each.
    void note_engines();
    [[nodiscard]] bool is_there(const Engine& engine) const;
    [[nodiscard]] RollbackAnswer answer_of(const Engine& engine) const;

    std::uint32_t rank_;
    PeerControl control_;
    RollbackRequest request_{};
    std::vector<Engine> engines_;
};

Result<AskedRank> AskedRank::ask(std::string_view ring, std::uint32_t rank, const RingLink& link) {
    auto socket = connect_to(ring, rank);
    if (!socket) return std::unexpected(socket.error());
    Patience patience(Deadline::after_ms(2000));
    auto welcome = greet(socket->get(), MessageKind::hello_observer, link, "observer", patience);
    if (!welcome) return std::unexpected(welcome.error());
    auto control = PeerControl::accept(std::move(welcome->fds[0]), welcome->message.control_bytes);
    if (!control) return std::unexpected(control.error());
    AskedRank made(rank, std::move(*control));
    made.note_engines();  // one may hear the request and leave before it can be counted
    Message message = make_message(MessageKind::roll_back);
    message.ring_id = link.ring_id();
    message.token = link.token();
    if (auto sent = send_message(socket->get(), message); !sent) {
        return std::unexpected(sent.error());
    }
    const auto reply = patience.receive(socket->get());
    if (!reply) return std::unexpected(reply.error());
    if (reply->message.kind != MessageKind::asked) {
        return refused(Errc::not_found, text_of(reply->message));
    }
    const std::uint64_t number = reply->message.epoch;
    auto request = shown_request(made.control_.publisher());
    // Another process may ask at the same time, for the same version or a later one.
    for (; !request || request->number < number; nap()) {
        if (patience.over()) return refused(Errc::timed_out, "the request does not show");
        request = shown_request(made.control_.publisher());
    }
    made.request_ = *request;
    made.note_engines();
    return made;
}

void AskedRank::note_engines() {
    for (std::uint32_t seat = 0; seat < control_.header().subscribers_max; seat++) {
        const Engine engine{seat, observe(control_.subscriber(seat).epoch)};
        if (engine.epoch == 0 || !is_there(engine)) continue;
        if (std::ranges::find(engines_, engine) == engines_.end()) engines_.push_back(engine);
    }
}

bool AskedRank::is_there(const Engine& engine) const {
    const SubscriberPage& page = control_.subscriber(engine.seat);
    return alive(control_.memory().fd(), LifeByte::subscriber(engine.seat)) &&
           observe(page.closed) == 0 && observe(page.epoch) == engine.epoch;
}

RollbackAnswer AskedRank::answer_of(const Engine& engine) const {
    const SubscriberPage& page = control_.subscriber(engine.seat);
    RollbackAnswer answer{.rank = rank_,
                          .subscriber = page.name.load(),
                          .pid = peek(page.pid),
                          .outcome = RollbackOutcome::silent,
                          .live_version = observe(page.live_version),
                          .why = ""};
    const auto state = static_cast<SubscriberState>(observe(page.state));
    const bool may_serve = answer.live_version == request_.version ||
                           state == SubscriberState::reading || state == SubscriberState::staged;
    if (!is_there(engine)) {
        answer.outcome = RollbackOutcome::gone;
    } else if (observe(page.answered) >= request_.number) {
        answer.outcome = static_cast<RollbackOutcome>(peek(page.answer));
        answer.why = page.answer_why.load();
    } else if (!may_serve) {
        answer.outcome = RollbackOutcome::not_live;
    } else if (observe(control_.admission(engine.seat).epoch) != engine.epoch) {
        answer.outcome = RollbackOutcome::refused;
        answer.why = "the publisher has expelled it";
    } else if (peek(page.takes_requests) == 0) {
        answer.outcome = RollbackOutcome::refused;
        answer.why = "it takes no requests (rollback_when_asked): its own code rolls back";
    }
    return answer;
}

std::vector<RollbackAnswer> AskedRank::answers() const {
    std::vector<RollbackAnswer> all;
    all.reserve(engines_.size());
    for (const Engine& engine : engines_) all.push_back(answer_of(engine));
    return all;
}

Result<std::vector<AskedRank>> ask_all(std::string_view ring) {
    const auto link = RingLink::attach(ring, Deadline::now(), false);
    if (!link) return std::unexpected(link.error());
    std::vector<AskedRank> asked;
    for (const std::uint32_t rank : channel::ranks_of(ring)) {
        auto one = AskedRank::ask(ring, rank, *link);
        if (one) {
            asked.push_back(std::move(*one));
        } else if (one.error().code != Errc::not_found || !asked.empty()) {
            return refused(one.error().code, fmt::format("ring {}: the publisher of rank {}: {}",
                                                         ring, rank, one.error().message));
        }
    }
    if (!asked.empty()) return asked;
    return refused(Errc::not_found,
                   fmt::format("ring {} has no live publisher with a committed version", ring));
}

}  // namespace
}  // namespace weights

std::string_view name(RollbackOutcome outcome) {
    switch (outcome) {
        case RollbackOutcome::silent:
            return "silent";
        case RollbackOutcome::rolled_back:
            return "rolled_back";
        case RollbackOutcome::not_live:
            return "not_live";
        case RollbackOutcome::refused:
            return "refused";
        case RollbackOutcome::gone:
            return "gone";
    }
    return "unknown";
}

Result<RollbackReport> ask_rollback(std::string_view ring, Deadline deadline) {
    const auto asked = weights::ask_all(ring);
    if (!asked) return std::unexpected(asked.error());
    for (;; weights::nap()) {
        const bool last = deadline.passed();
        RollbackReport report;
        for (const auto& rank : *asked) {
            report.version = std::max(report.version, rank.version());
            for (RollbackAnswer& answer : rank.answers()) {
                report.engines.push_back(std::move(answer));
            }
        }
        const bool complete = std::ranges::none_of(
            report.engines,
            [](const RollbackAnswer& answer) { return answer.outcome == RollbackOutcome::silent; });
        if (complete || last) return report;
    }
}

}  // namespace rollring
