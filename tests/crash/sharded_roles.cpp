#include "sharded_roles.hpp"

#include <csignal>
#include <memory>
#include <optional>

#include "control_socket.hpp"
#include "rollring/weights.hpp"
#include "sharded_memory.hpp"
#include "support/shard_model.hpp"

namespace rollring::test {
namespace {

constexpr std::int64_t changes_period = 3;  // a version changes a third of the elements
constexpr std::int64_t moment_ms = 100;     // after which a process looks whether it is to end

// The common part of both roles.
class Role {
  public:
    explicit Role(const std::vector<std::string>& arguments)
        : board_(arguments.at(0)),
          ring_(arguments.at(1)),
          rank_(static_cast<std::uint32_t>(std::stoul(arguments.at(2)))),
          ranks_(static_cast<std::uint32_t>(std::stoul(arguments.at(3)))),
          step_(std::stoi(arguments.at(4))),
          version_(std::stoll(arguments.at(5))) {}

  protected:
    template <class Step>
    void at(Step step, std::int64_t version) const {
        if (static_cast<int>(step) == step_ && version == version_) {
            static_cast<void>(raise(SIGSTOP));
        }
    }
    [[nodiscard]] bool ends() const { return board_->stop != 0; }

    Shared<ShardedBoard> board_;
    std::string ring_;
    std::uint32_t rank_;
    std::uint32_t ranks_;
    int step_;
    std::int64_t version_;
};

class Trainer : public Role {
  public:
    explicit Trainer(const std::vector<std::string>& arguments)
        : Role(arguments),
          shard_(make_rank_memory(rank_, ranks_, changes_period)),
          note_(&board_->trainers.at(rank_)) {}

    int run() {
        create();
        // A restarted one leaves the version at which its predecessor died to the others.
        std::int64_t tried = note_->made > 1 ? board_->target.load() : -1;
        if (tried >= 0) note_->tried = tried;
        while (!ends()) {
            const std::int64_t target = board_->target;
            if (target <= tried) {
                send_again();
                weights::nap();
                continue;
            }
            const auto done = publish(target);
            require(done || done.error().code == Errc::aborted ||
                        done.error().code == Errc::peer_gone ||
                        done.error().code == Errc::rejected ||
                        done.error().code == Errc::stale_version,
                    "rank {} was told {}", rank_, done ? "" : done.error().to_string());
            tried = target;
            note_->committed = publisher_->committed_version();
            note_->tried = tried;
        }
        return 0;
    }

  private:
    void create() {
        const PublisherOptions options{.rank = rank_,
                                       .ranks = ranks_,
                                       .device = rank_devices().trainer,
                                       .memory = rank_devices().memory,
                                       .checksums = !is_direct(),
                                       .layout = shard_->layout()};
        for (const Deadline deadline = patience();;) {
            auto made = Publisher::create(ring_, shard_->list(), options);
            if (made) {
                publisher_ = std::move(*made);
                break;
            }
            require(made.error().code == Errc::busy && !deadline.passed(), "{}",
                    made.error().to_string());
            weights::nap();
        }
        note_->made++;
    }

    // To engines that lack the version that no slot has. The other ranks may have none, or be gone.
    void send_again() {
        const std::int64_t version = publisher_->committed_version();
        if (!is_direct() || version < 0 || publisher_->behind() == 0) return;
        shard_->fill(version);
        static_cast<void>(publisher_->resend(Deadline::after_ms(moment_ms)));
    }

    Result<void> publish(std::int64_t version) {
        shard_->fill(version);
        auto open = publisher_->begin(version);
        if (!open) return std::unexpected(open.error());
        at(TrainerStep::begun, version);
        if (auto put = open->put_all(patience()); !put) return put;
        at(TrainerStep::put, version);
        if (auto done = open->publish(); !done) return done;
        if (auto staged = open->wait_staged(patience()); !staged) return staged;
        at(TrainerStep::staged, version);
        if (auto report = open->commit(patience()); !report) {
            return std::unexpected(report.error());
        }
        at(TrainerStep::committed, version);
        return {};
    }

    std::unique_ptr<RankMemory> shard_;
    ShardedBoard::Trainer* note_;
    std::optional<Publisher> publisher_;
};

class Engine : public Role {
  public:
    explicit Engine(const std::vector<std::string>& arguments)
        : Role(arguments),
          shard_(rank_, ranks_, changes_period),
          note_(&board_->engines.at(rank_)) {}

    int run() {
        note_->live = -1;
        while (!ends()) attach_and_serve();
        return 0;
    }

  private:
    void check(bool kept, std::string_view promise) {
        require(kept, "engine {}, which serves version {}: {}", rank_, live_, promise);
    }

    void attach_and_serve() {
        auto made =
            Subscriber::attach(ring_, shard_.list(), options(), Deadline::after_ms(moment_ms));
        if (!made) {
            const Errc code = made.error().code;
            require(code == Errc::timed_out || code == Errc::busy || code == Errc::peer_gone,
                    "engine {} could not attach: {}", rank_, made.error().to_string());
            return;
        }
        note_->attached++;
        while (!ends()) {
            auto update = made->next(Deadline::after_ms(moment_ms));
            if (!update && update.error().code == Errc::timed_out) continue;
            if (!update) return check(shard_.holds(live_), "its values changed without a version");
            const auto taken = take(*update);
            if (taken && went_back(*made)) return;
            if (taken) continue;
            const Errc code = taken.error().code;
            const bool left_behind = is_direct() && code == Errc::expelled;
            require(left_behind || code == Errc::aborted || code == Errc::peer_gone,
                    "engine {} was told {}", rank_, taken.error().to_string());
            note_->gave_up = version_taken_;
            const bool torn = board_->late != 0 && made->state() == SubscriberState::poisoned;
            if (torn) return lose_version();
            check(shard_.holds(live_), "its values changed with a version that failed");
            check(made->state() == SubscriberState::ready, "it is not ready");
            check(made->live_version() == live_, "live_version() differs");
            if (code == Errc::peer_gone || left_behind) return;
        }
    }

    // Some copy; some exchange the differences, of which the list has room for all, or for few.
    // Where no slot keeps a version, all have it beside their tensors when they vote.
    [[nodiscard]] SubscriberOptions options() {
        std::uint32_t kind = rank_ % 3;
        if (is_direct() && !board_->late && kind == 2) kind = 1;
        const RankDevices places = rank_devices();
        return {.name = "engine-" + std::to_string(rank_),
                .device = board_->late ? places.trainer : places.engine,
                .held_version = live_,
                .staging = kind == 0 ? Staging::copy : Staging::delta,
                .delta_fallback = kind == 1 ? DeltaFallback::beside : DeltaFallback::in_place,
                .delta_list_bytes = 64,
                .layout = shard_.layout()};
    }

    // Restores the version before some of them, once, and attaches again without it.
    bool went_back(Subscriber& engine) {
        const std::int64_t left = engine.live_version();
        if (left % 3 != 0 || left == left_ || engine.delta().way != DeltaWay::beside) return false;
        left_ = left;
        const auto back = engine.rollback();
        require(back.has_value(), "engine {} could not go back from version {}: {}", rank_, left,
                back ? "" : back.error().to_string());
        live_ = engine.live_version();
        check(live_ < left && shard_.holds(live_), "it went back to another version");
        return true;
    }

    // The trainer died while this engine copied: it holds no version until the next one.
    void lose_version() {
        note_->torn++;
        live_ = -1;
        shard_.forget();
    }

    Result<void> take(Update& update) {
        const std::int64_t version = version_taken_ = update.version();
        check(version > live_, "an older version comes");
        at(EngineStep::seen, version);
        if (auto loaded = update.load(patience()); !loaded) return loaded;
        at(EngineStep::held, version);
        if (auto staged = update.stage(patience()); !staged) return staged;
        at(EngineStep::staged, version);
        if (auto known = update.wait_committed(patience()); !known) return known;
        check(shard_.holds(live_), "its values changed before it adopted a version");
        at(EngineStep::decided, version);
        if (auto adopted = update.adopt(patience()); !adopted) return adopted;
        live_ = version;
        check(shard_.holds(live_), "it does not have the version that it has adopted");
        const auto stat = stat_ring(ring_);
        require(stat && stat->policy_version >= version, "the ring does not have version {}",
                version);
        at(EngineStep::adopted, version);
        note_->live = version;
        return {};
    }

    EngineShard shard_;
    ShardedBoard::Engine* note_;
    std::int64_t live_ = -1;
    std::int64_t version_taken_ = -1;
    std::int64_t left_ = -1;  // the version that it went back from
};

}  // namespace

int sharded_trainer(const std::vector<std::string>& arguments) {
    return Trainer(arguments).run();
}

int sharded_engine(const std::vector<std::string>& arguments) {
    return Engine(arguments).run();
}

}  // namespace rollring::test
