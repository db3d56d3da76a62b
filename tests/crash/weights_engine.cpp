// An engine of the crash tests: takes versions for ever, and after every step knows what it holds.
// Even ones read views, into the tensors that they serve; odd ones load into others and swap. Those
// that stage by difference go back from some versions; where the list has no room, it grows for
// even ones, and odd ones load in place.

#include <memory>
#include <optional>

#include "control_socket.hpp"
#include "weights_model.hpp"
#include "weights_roles.hpp"

namespace rollring::test {
namespace {

constexpr std::int64_t engine_patience_ms = 150;
constexpr int versions_per_attachment = 6;  // then it leaves in good order, and comes back

class Engine {
  public:
    explicit Engine(const std::vector<std::string>& arguments)
        : board_(arguments.at(1)),
          ring_(arguments.at(2)),
          index_(static_cast<std::uint32_t>(std::stoul(arguments.at(3)))),
          rank_(static_cast<std::uint32_t>(std::stoul(arguments.at(4)))),
          store_(make_store(arguments.at(5) == "0" ? Device::host() : Device::cuda(0))),
          direct_(arguments.at(5) == "2"),
          delta_(arguments.at(6) != "0"),
          soak_(arguments.at(6) == "2"),
          in_place_(!delta_ && index_ % 2 == 0),
          serving_(*store_, changes()),
          loading_(*store_, changes()),
          note_(&board_->engines.at(index_)) {}

    int run() {
        note_->live = -1;
        std::optional<std::size_t> descriptors;
        while (board_->engines_stop == 0) {
            attach_and_serve();
            const std::size_t now = open_descriptors();
            if (!descriptors) descriptors = now;
            require(now <= *descriptors, "the engine has {} descriptors, not {}", now,
                    *descriptors);
        }
        return 0;
    }

  private:
    [[nodiscard]] Changes changes() const {
        if (soak_) return Changes::shares;
        return delta_ ? Changes::few : Changes::all;
    }

    void tell(const Error& error) {
        require(error.code == Errc::timed_out || error.code == Errc::peer_gone ||
                    error.code == Errc::expelled || error.code == Errc::aborted ||
                    error.code == Errc::busy || error.code == Errc::rejected,
                "engine {} was told {}", index_, error.to_string());
        require(!error.message.empty(), "an error without words");
        note_->told.by_code[static_cast<std::size_t>(error.code)]++;
    }

    void attach_and_serve() {
        const bool grows = soak_ || index_ % 2 == 0;
        const SubscriberOptions options{
            .name = fmt::format("engine-{}", index_),
            .rank = rank_,
            .device = store_->device(),
            .in_place = in_place_,
            .held_version = held_,
            .staging = delta_ ? Staging::delta : Staging::copy,
            .delta_fallback = grows ? DeltaFallback::beside : DeltaFallback::in_place,
            .delta_list_bytes = 8 << 10};
        Model& into = in_place_ || delta_ ? serving_ : loading_;
        auto made =
            Subscriber::attach(ring_, into.list(), options, Deadline::after_ms(engine_patience_ms));
        if (!made) return tell(made.error());
        note_->attached++;
        for (int i = 0; i < versions_per_attachment;) {
            auto update = made->next(Deadline::after_ms(engine_patience_ms));
            if (board_->engines_stop != 0) return;
            if (!update) {
                tell(update.error());
                check_held(*made);
                if (update.error().code != Errc::timed_out) return;
                continue;
            }
            i++;
            const auto taken = delta_ ? take_changes(*made, *update) : take(*update);
            if (taken) {
                now_serves(*made, *taken);
                // Not before it leaves: one that is stopped here must hear of its expulsion.
                const bool stays = i < versions_per_attachment;
                if (delta_ && stays && *taken % 5 == 0) go_back(*made, *taken);
                continue;
            }
            tell(taken.error());
            {
                const auto dropped = std::move(*update);
            }  // rejects, where that is still possible
            check_held(*made);
            const Errc code = taken.error().code;
            if (code != Errc::aborted && code != Errc::timed_out) return;
        }
    }

    // Calls again after timed_out, until we are to stop.
    template <class Call>
    auto patiently(const Call& call) {
        for (;;) {
            auto done = call(Deadline::after_ms(engine_patience_ms));
            if (done || done.error().code != Errc::timed_out || board_->engines_stop != 0) {
                return done;
            }
            tell(done.error());
        }
    }

    Result<std::int64_t> take(Update& update) {
        const std::int64_t version = update.version();
        Result<void> done;
        if (in_place_) {
            for (std::uint32_t i = 0; done && i < update.parts(); i++) {
                done = read_part(update, i, version);
            }
        } else {
            done = patiently([&](Deadline deadline) { return update.load(deadline); });
        }
        if (done) done = patiently([&](Deadline deadline) { return update.stage(deadline); });
        if (done) done = patiently([&](Deadline deadline) { return update.adopt(deadline); });
        if (!done) return std::unexpected(done.error());
        return version;
    }

    // The tensors keep the old version until the commit.
    Result<std::int64_t> take_changes(const Subscriber& subscriber, Update& update) {
        before_ = held_;
        const auto still_old = [&] {
            const bool untouched = subscriber.delta().way != DeltaWay::in_place;
            require(!untouched || held_ < 0 || serving_.holds(held_),
                    "engine {} does not hold version {} before the commit", index_, held_);
        };
        auto done = patiently([&](Deadline deadline) { return update.load(deadline); });
        if (done) {
            still_old();
            done = patiently([&](Deadline deadline) { return update.stage(deadline); });
        }
        if (done) done = patiently([&](Deadline until) { return update.wait_committed(until); });
        if (done) {
            still_old();
            done = patiently([&](Deadline deadline) { return update.adopt(deadline); });
        }
        if (!done) return std::unexpected(done.error());
        note_changes(subscriber, before_);
        return subscriber.live_version();
    }

    void note_changes(const Subscriber& subscriber, std::int64_t before) {
        const DeltaReport report = subscriber.delta();
        if (before < 0 || before + 1 != report.version || report.elements == 0) return;
        note_->changed.at(1000 * report.changed / report.elements)++;
    }

    void go_back(Subscriber& subscriber, std::int64_t version) {
        const auto done = subscriber.rollback();
        // A version that was copied in place stays, and so does one that ended a mixture.
        const bool may_not = subscriber.delta().way == DeltaWay::in_place || before_ < 0;
        require(done || may_not, "engine {} did not go back from version {}: {}", index_, version,
                done ? "" : done.error().to_string());
        if (!done) return;
        require(subscriber.live_version() == before_ && (before_ < 0 || serving_.holds(before_)),
                "engine {} does not hold version {} again", index_, before_);
        held_ = note_->live = before_;
        note_->rolled_back++;
    }

    // Lent values stay as they are, however long we were stopped. Those of the trainer's own
    // tensors may change once it goes on without us: then we must not serve them.
    Result<void> read_part(Update& update, std::uint32_t part, std::int64_t version) {
        const auto views =
            patiently([&](Deadline deadline) { return update.part(part, deadline); });
        if (!views) return std::unexpected(views.error());
        for (const TensorPiece& piece : *views) {
            require(direct_ || serving_.is_of(piece, version),
                    "part {} of version {} is not the version's", part, version);
            serving_.take(piece);
        }
        return update.done_reading(part);
    }

    void now_serves(const Subscriber& subscriber, std::int64_t version) {
        if (!in_place_ && !delta_) serving_.copy_from(loading_);
        require(serving_.holds(version), "engine {} serves something else than version {}", index_,
                version);
        require(
            subscriber.live_version() == version && subscriber.state() == SubscriberState::ready,
            "live, and yet: {}", name(subscriber.state()));
        require(version > held_, "version {} after {}", version, held_);
        const auto stat = stat_ring(ring_);
        require(stat && stat->policy_version >= version, "version {} is live, the ring says {}",
                version, stat ? stat->policy_version : -2);
        held_ = version;
        note_->live = version;
        note_->memory_bytes = resident_bytes();
        note_->syncs++;
        std::int64_t most = board_->served;
        while (most < version && !board_->served.compare_exchange_weak(most, version)) {
        }
    }

    // After an error: the old version whole, or poisoned.
    void check_held(const Subscriber& subscriber) {
        if (subscriber.state() == SubscriberState::poisoned) {
            const bool may = delta_ ? subscriber.delta().way == DeltaWay::in_place : in_place_;
            require(may && !subscriber.problem().empty(), "poisoned without need or reason");
            held_ = -1;
            note_->poisoned++;
            return;
        }
        require(subscriber.state() == SubscriberState::ready, "engine {} is {} after an error",
                index_, name(subscriber.state()));
        if (subscriber.live_version() < 0) return;
        require(serving_.holds(subscriber.live_version()), "engine {} does not hold version {}",
                index_, subscriber.live_version());
        require(held_ == subscriber.live_version(), "it held version {}", held_);
        note_->kept_old++;
    }

    Shared<Board> board_;
    std::string ring_;
    std::uint32_t index_;
    std::uint32_t rank_;
    std::unique_ptr<Store> store_;
    bool direct_;
    bool delta_;
    bool soak_;
    bool in_place_;
    Model serving_;
    Model loading_;
    EngineNote* note_;
    std::int64_t held_ = -1;
    std::int64_t before_ = -1;  // the version before the last one that was taken
};

}  // namespace

int engine_role(const std::vector<std::string>& arguments) {
    die_with_parent();
    return Engine(arguments).run();
}

}  // namespace rollring::test
