// The two ends of the weight channel: versions for ever, in host memory, each said in the journal
// before and after it is committed, and when an engine serves it.

#include <algorithm>
#include <functional>
#include <optional>

#include "control_socket.hpp"
#include "crash/weights_model.hpp"
#include "journal.hpp"
#include "rollring/ring.hpp"
#include "support/load.hpp"

namespace rollring::test {
namespace {

constexpr std::int64_t patience_ms = 100;  // of a stage, before late engines are expelled
constexpr std::uint32_t engines_max = 16;

std::string engine(std::uint32_t index) {
    return fmt::format("engine-{}", index);
}

class WeightPublisher {
  public:
    WeightPublisher(const Part& part, Journal& journal)
        : part_(part),
          journal_(journal),
          dice_{part.seed},
          store_(make_store(Device::host())),
          model_(*store_) {}

    int run() {
        if (!create()) return 0;
        while (part_.board->weights_end == 0) {
            static_cast<void>(publisher_->wait_subscribers(1, Deadline::after_ms(patience_ms)));
            sync();
            if (publisher_->behind() > 0) resend();
            for (std::uint64_t i = dice_.below(4); i > 0; i--) weights::nap();
        }
        return 0;
    }

  private:
    [[nodiscard]] std::int64_t ring_version() const {
        const auto stat = stat_ring(part_.ring);
        require(stat.has_value(), "{}", stat ? "" : stat.error().to_string());
        return stat->policy_version;
    }

    bool create() {
        for (const Deadline deadline = patience(); part_.board->weights_end == 0;) {
            auto made = Publisher::create(part_.ring, model_.list(),
                                          {.slot_bytes = 4096, .checksums = true});
            if (made) {
                publisher_ = std::move(*made);
                last_ = ring_version();
                return true;
            }
            const Errc code = made.error().code;
            require((code == Errc::busy || code == Errc::not_enough_shared_memory) &&
                        !deadline.passed(),
                    "no publisher: {}", made.error().to_string());
            journal_.say(Kind::refused, static_cast<std::int64_t>(code));
            weights::nap();
        }
        return false;
    }

    // Expels the engines that the error names. False if the step cannot be taken again.
    bool helped(const Error& error) {
        require(error.code == Errc::timed_out || error.code == Errc::rejected ||
                    error.code == Errc::aborted,
                "the publisher was told {}", error.to_string());
        journal_.say(Kind::waiting);
        bool any = false;
        for (std::uint32_t i = 0; i < engines_max; i++) {
            if (!error.message.contains(fmt::format("'{}'", engine(i)))) continue;
            any = true;
            if (error.message.contains(fmt::format("'{}' (expelled)", engine(i)))) continue;
            const auto done = publisher_->expel(engine(i));
            require(done || done.error().code == Errc::not_found, "expel: {}",
                    done ? "" : done.error().to_string());
        }
        return any && error.code == Errc::timed_out;
    }

    bool step(const std::function<Result<void>(Deadline)>& call) {
        for (;;) {
            const auto done = call(Deadline::after_ms(patience_ms));
            if (done) return true;
            if (!helped(done.error())) return false;
        }
    }

    void sync() {
        const std::int64_t version = std::max(last_, ring_version()) + 1;
        last_ = version;
        model_.fill(version);
        auto open = publisher_->begin(version);
        require(open.has_value(), "begin: {}", open ? "" : open.error().to_string());
        if (!step([&](Deadline deadline) { return open->put_all(deadline); })) return;
        require(open->publish().has_value(), "cannot publish");
        if (part_.plant != "unsaid" || version % 50 != 0) journal_.say(Kind::committing, version);
        const bool done = step([&](Deadline deadline) -> Result<void> {
            auto report = open->commit(deadline);
            if (!report) return std::unexpected(report.error());
            return {};
        });
        if (part_.plant == "unsaid" && version % 50 == 0) return;
        if (done) require(ring_version() == version, "committed, and not in the ring");
        journal_.say(done ? Kind::committed : Kind::aborted, version);
    }

    void resend() {
        const auto done = publisher_->resend(Deadline::after_ms(patience_ms));
        if (!done) helped(done.error());
    }

    const Part& part_;
    Journal& journal_;
    Dice dice_;
    std::unique_ptr<Store> store_;
    Model model_;
    std::optional<Publisher> publisher_;
    std::int64_t last_ = -1;
};

// One in two reads into the tensors that it serves, the others load into others and swap.
class WeightSubscriber {
  public:
    WeightSubscriber(const Part& part, Journal& journal, std::uint32_t index)
        : part_(part),
          journal_(journal),
          index_(index),
          in_place_(index % 2 == 0),
          store_(make_store(Device::host())),
          serving_(*store_),
          loading_(*store_) {}

    int run() {
        while (!ended()) attach_and_serve();
        return 0;
    }

  private:
    [[nodiscard]] bool ended() const { return part_.board->weights_end != 0; }

    void tell(const Error& error) {
        const Errc code = error.code;
        require(code == Errc::timed_out || code == Errc::peer_gone || code == Errc::expelled ||
                    code == Errc::aborted || code == Errc::busy || code == Errc::rejected,
                "engine {} was told {}", index_, error.to_string());
        journal_.say(Kind::waiting);
    }

    void attach_and_serve() {
        const SubscriberOptions options{
            .name = engine(index_), .in_place = in_place_, .held_version = held_};
        Model& into = in_place_ ? serving_ : loading_;
        auto made =
            Subscriber::attach(part_.ring, into.list(), options, Deadline::after_ms(patience_ms));
        if (!made) return tell(made.error());
        for (int versions = 0; versions < 20 && !ended();) {
            auto update = made->next(Deadline::after_ms(patience_ms));
            Error error{};
            if (update) {
                versions++;
                const std::int64_t version = update->version();
                const auto taken = take(*update);
                if (taken) {
                    serve(*made, version);
                    continue;
                }
                error = taken.error();
                const Update dropped = std::move(*update);
            } else {
                error = update.error();
            }
            tell(error);
            if (made->state() == SubscriberState::poisoned) {
                require(in_place_, "poisoned without need");
                if (held_ != -1) journal_.say(Kind::live, -1, 1);
                held_ = -1;
            }
            if (error.code != Errc::timed_out && error.code != Errc::aborted) return;
        }
    }

    Result<void> take(Update& update) {
        const std::function<Result<void>(Deadline)> steps[] = {
            [&](Deadline deadline) { return update.load(deadline); },
            [&](Deadline deadline) { return update.stage(deadline); },
            [&](Deadline deadline) { return update.adopt(deadline); }};
        for (const auto& step : steps) {
            for (bool done = false; !done;) {
                const auto got = step(Deadline::after_ms(patience_ms));
                done = got.has_value();
                if (!done && (got.error().code != Errc::timed_out || ended())) return got;
                if (!done) journal_.say(Kind::waiting);
            }
        }
        return {};
    }

    void serve(const Subscriber& subscriber, std::int64_t version) {
        if (!in_place_) serving_.copy_from(loading_);
        require(subscriber.live_version() == version, "live, and yet: {}",
                subscriber.live_version());
        const bool stale = part_.plant == "stale" && version % 50 == 0;
        journal_.say(Kind::live, version, serving_.holds(version) ? 1 : 0);
        if (stale) journal_.say(Kind::live, version - 1, 1);
        held_ = version;
    }

    const Part& part_;
    Journal& journal_;
    std::uint32_t index_;
    bool in_place_;
    std::unique_ptr<Store> store_;
    Model serving_;
    Model loading_;
    std::int64_t held_ = -1;
};

}  // namespace

int publisher_part(const Part& part, Journal& journal) {
    return WeightPublisher(part, journal).run();
}

int subscriber_part(const Part& part, Journal& journal, std::uint32_t index) {
    return WeightSubscriber(part, journal, index).run();
}

}  // namespace rollring::test
