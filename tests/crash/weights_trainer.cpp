// The trainer of the crash tests: versions for ever, each with its checks.

#include <algorithm>
#include <memory>
#include <optional>

#include "control_socket.hpp"
#include "weights_model.hpp"
#include "weights_roles.hpp"

namespace rollring::test {
namespace {

constexpr std::int64_t trainer_patience_ms = 250;  // of a stage, before late engines are expelled

class Trainer {
  public:
    explicit Trainer(const std::vector<std::string>& arguments)
        : board_(arguments.at(1)),
          ring_(arguments.at(2)),
          rank_(static_cast<std::uint32_t>(std::stoul(arguments.at(3)))),
          ranks_(static_cast<std::uint32_t>(std::stoul(arguments.at(4)))),
          engines_(static_cast<std::uint32_t>(std::stoul(arguments.at(5)))),
          store_(make_store(arguments.at(6) == "0" ? Device::host() : Device::cuda(0))),
          direct_(arguments.at(6) == "2"),
          model_(*store_, arguments.at(7) == "2"   ? Changes::shares
                          : arguments.at(7) == "1" ? Changes::few
                                                   : Changes::all),
          note_(&board_->trainers.at(rank_)) {}

    int run() {
        const std::size_t descriptors = open_descriptors();
        create();
        const bool gpu = store_->device().is_gpu();  // the driver opens files as it likes
        if (board_->trainers_stop == 0) {
            static_cast<void>(publisher_->wait_subscribers(engines_, Deadline::after_ms(500)));
        }
        while (board_->trainers_stop == 0) {
            static_cast<void>(publisher_->wait_subscribers(engines_, Deadline::after_ms(50)));
            if (const auto version = next_version()) sync(*version);
            if (ranks_ == 1 && publisher_->behind() > 0) resend();
        }
        publisher_.reset();
        require(gpu || open_descriptors() == descriptors, "the trainer has {} descriptors, not {}",
                open_descriptors(), descriptors);
        return 0;
    }

  private:
    [[nodiscard]] std::int64_t ring_version() const {
        const auto stat = stat_ring(ring_);
        require(stat.has_value(), "{}", stat ? "" : stat.error().to_string());
        return stat->policy_version;
    }

    void create() {
        const PublisherOptions options{
            .rank = rank_,
            .ranks = ranks_,
            .device = store_->device(),
            .memory = direct_ ? PayloadMemory::direct : PayloadMemory::automatic,
            .slot_bytes = 4096,
            .checksums = !direct_};
        const Deadline deadline = patience();
        for (;;) {
            auto made = Publisher::create(ring_, model_.list(), options);
            if (made) {
                publisher_ = std::move(*made);
                break;
            }
            require(made.error().code == Errc::busy && !deadline.passed(), "{}",
                    made.error().to_string());
            weights::nap();
        }
        require(direct_ ? publisher_->parts() == 1 : publisher_->parts() > 4, "{} parts",
                publisher_->parts());
        // A version that an engine serves is never given out again.
        last_ = ring_version();
        require(last_ >= board_->served, "the ring is at {}, engines were at {}", last_,
                board_->served.load());
        note_->created++;
    }

    // With several ranks, rank 0 says which version is next.
    std::optional<std::int64_t> next_version() {
        if (rank_ == 0) {
            last_ = std::max({last_, ring_version(), board_->ranks_version.load()}) + 1;
            board_->ranks_version = last_;
            return last_;
        }
        for (const Deadline deadline = Deadline::after_ms(trainer_patience_ms);
             !deadline.passed();) {
            const std::int64_t now = board_->ranks_version;
            if (now > std::max(last_, ring_version())) return last_ = now;
            weights::nap();
        }
        return {};
    }

    void tell(const Error& error) {
        require(error.code == Errc::timed_out || error.code == Errc::rejected ||
                    error.code == Errc::aborted || error.code == Errc::peer_gone,
                "the trainer was told {}", error.to_string());
        require(!error.message.empty(), "an error without words");
        note_->told.by_code[static_cast<std::size_t>(error.code)]++;
    }

    // Expels the engines that the error names. False if it names none.
    bool expel_late(const Error& error) {
        bool any = false;
        for (std::uint32_t i = 0; i < engines_max; i++) {
            if (!error.message.contains(fmt::format("'engine-{}'", i))) continue;
            const bool stage =
                error.message.contains("staged") || error.message.contains("read_done");
            require(stage, "no stage is named: {}", error.message);
            any = true;
            board_->blamed[i]++;
            if (error.message.contains(fmt::format("'engine-{}' (expelled)", i))) continue;
            const auto done = publisher_->expel(fmt::format("engine-{}", i));
            require(done || done.error().code == Errc::not_found, "{}",
                    done ? "" : done.error().to_string());
            if (done) board_->expelled[i]++;
        }
        return any;
    }

    // A step that may be called again after timed_out. False if the version is lost.
    bool step(const std::function<Result<void>(Deadline)>& call) {
        for (;;) {
            const auto done = call(Deadline::after_ms(trainer_patience_ms));
            if (done) return true;
            tell(done.error());
            if (done.error().code != Errc::timed_out || !expel_late(done.error())) return false;
        }
    }

    void sync(std::int64_t version) {
        send(version);
        // Committed or not: no engine may serve bytes that the tensors get from here on.
        if (direct_) model_.fill(version + 1'000'000);
    }

    void send(std::int64_t version) {
        model_.fill(version);
        auto open = publisher_->begin(version);
        if (!open && open.error().code == Errc::stale_version && ranks_ > 1) return;
        require(open.has_value(), "{}", open ? "" : open.error().to_string());
        if (!step([&](Deadline deadline) { return open->put_all(deadline); })) return;
        require(open->publish().has_value(), "cannot publish");
        CommitReport report;
        const auto commit = [&](Deadline deadline) -> Result<void> {
            auto done = open->commit(deadline);
            if (!done) return std::unexpected(done.error());
            report = *done;
            return {};
        };
        if (!step(commit)) return;
        require(report.version == version, "version {} was committed, not {}", report.version,
                version);
        const std::int64_t stamped = ring_version();
        require(stamped == version || (ranks_ > 1 && stamped > version),
                "version {} is committed, the ring says {}", version, stamped);
        require(publisher_->committed_version() == version, "the publisher says otherwise");
        note_->committed = version;
        note_->syncs++;
    }

    void resend() {
        if (direct_) model_.fill(publisher_->committed_version());  // from unchanged tensors
        const auto done = publisher_->resend(Deadline::after_ms(trainer_patience_ms));
        if (done) {
            note_->resent++;
            return;
        }
        tell(done.error());
        if (done.error().code == Errc::timed_out) expel_late(done.error());
    }

    Shared<Board> board_;
    std::string ring_;
    std::uint32_t rank_;
    std::uint32_t ranks_;
    std::uint32_t engines_;
    std::unique_ptr<Store> store_;
    bool direct_;
    Model model_;
    TrainerNote* note_;
    std::optional<Publisher> publisher_;
    std::int64_t last_ = -1;
};

}  // namespace

int trainer_role(const std::vector<std::string>& arguments) {
    die_with_parent();
    return Trainer(arguments).run();
}

}  // namespace rollring::test
