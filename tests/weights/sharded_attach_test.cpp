// An engine attaches to all ranks of a sharded trainer, or leaves no trace at any.

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel_names.hpp"
#include "control_socket.hpp"
#include "rollring/weight_layout.hpp"
#include "sharded_channel.hpp"
#include "stranger.hpp"

namespace rollring::test {
namespace {

using namespace weights;

// Has the name of a rank, and passes messages on between the rank and its engines. It keeps back
// the messages of one kind, and can be gone, as a rank that is slow or is being started again.
class Between {
  public:
    Between(const TestRing& ring, std::uint32_t rank, MessageKind kept)
        : ring_(ring.name()), rank_(rank), kept_(kept) {
        std::filesystem::rename(path(rank_), path(behind()));
        appear();
    }
    Between(const Between&) = delete;
    Between& operator=(const Between&) = delete;
    ~Between() {
        vanish();
        std::filesystem::rename(path(behind()), path(rank_));
    }

    void appear() {
        auto made = Listener::open(ring_, rank_);
        REQUIRE_OK(made);
        listener_.emplace(std::move(*made));
        stop_ = false;
        serving_ = std::thread([this] { serve(); });
    }
    void vanish() {
        stop_ = true;
        if (serving_.joinable()) serving_.join();
        pairs_.clear();
        listener_.reset();
    }
    // Until a message was kept back. The earlier ranks have seen theirs by then.
    void await_kept() const {
        for (const Deadline deadline = patience(); !keeps_; nap()) REQUIRE(!deadline.passed());
        for (std::uint32_t rank = 0; rank < rank_; rank++) {
            // Their threads answer in order.
            const auto socket = connect_to(ring_, rank);
            REQUIRE_OK(socket);
            REQUIRE_OK(send_message(socket->get(), make_message(MessageKind::hello_observer)));
            REQUIRE_OK(receive_message(socket->get(), patience()));
        }
    }
    void let_go() { lets_go_ = true; }

  private:
    struct Pair {
        Fd engine;
        Fd rank;
        std::optional<Received> kept;
    };
    [[nodiscard]] std::uint32_t behind() const { return rank_ + 100; }
    [[nodiscard]] std::string path(std::uint32_t rank) const {
        return channel::directory_path() + "/" + channel::file_name(ring_, rank);
    }
    static bool pass(const Received& received, const Fd& to) {
        std::vector<int> fds;
        fds.reserve(received.fds.size());
        for (const Fd& fd : received.fds) fds.push_back(fd.get());
        return send_message(to.get(), received.message, fds).has_value();
    }
    bool pass_some(Pair& pair) {
        if (pair.kept && !lets_go_) return true;
        if (pair.kept) {
            const bool passed = pass(*pair.kept, pair.rank);
            pair.kept.reset();
            if (!passed) return false;
        }
        for (const auto& [from, to] :
             {std::pair{&pair.engine, &pair.rank}, {&pair.rank, &pair.engine}}) {
            auto received = receive_message(from->get(), Deadline::now());
            if (!received && received.error().code != Errc::timed_out) return false;
            if (!received) continue;
            if (from == &pair.engine && received->message.kind == kept_ && !lets_go_) {
                pair.kept = std::move(*received);
                keeps_ = true;
            } else if (!pass(*received, *to)) {
                return false;
            }
        }
        return true;
    }
    void serve() {
        while (!stop_) {
            pollfd wait{.fd = listener_->fd(), .events = POLLIN, .revents = 0};
            poll(&wait, 1, 1);
            if (wait.revents != 0) {
                Fd engine(accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC));
                auto rank = connect_to(ring_, behind());
                if (engine && rank) pairs_.push_back({std::move(engine), std::move(*rank), {}});
            }
            std::erase_if(pairs_, [&](Pair& pair) { return !pass_some(pair); });
        }
    }

    std::string ring_;
    std::uint32_t rank_;
    MessageKind kept_;
    std::atomic<bool> keeps_ = false;
    std::atomic<bool> lets_go_ = false;
    std::atomic<bool> stop_ = false;
    std::optional<Listener> listener_;
    std::list<Pair> pairs_;
    std::thread serving_;
};

WeightsStat first_rank(const TestRing& ring) {
    auto all = stat_weights(ring.name());
    REQUIRE_OK(all);
    REQUIRE(!all->empty());
    return std::move(all->front());
}

constexpr std::uint32_t trainer_ranks = 3;

// A trainer of three ranks, and an engine that takes its versions.
struct Fleet {
    explicit Fleet(std::uint32_t last_subscribers = 64)
        : trainer(ring, trainer_ranks, last_subscribers) {}
    // All ranks commit a version that they have put, and the engine takes it.
    void commit(std::vector<Transaction>& open, std::int64_t version) {
        std::thread taking([&] { CHECK(*take(engine->subscriber) == version); });
        commit_by_all(open);
        taking.join();
        CHECK(engine->shard.holds(version));
    }
    TestRing ring;
    Trainer trainer;
    std::unique_ptr<Engine> engine = engine_on(ring, 0, 2);
};

}  // namespace

TEST_CASE("the layout of all ranks can be looked up without attaching") {
    const TestRing ring;
    const auto look = [&](Deadline deadline) {
        return Subscriber::published_layout(ring.name(), {}, deadline);
    };
    const auto whole_tensors = [&] {
        return Subscriber::published(ring.name(), {.rank = 0}, patience());
    };
    CHECK(look(soon()).error().code == Errc::timed_out);
    {
        Tensors whole = small_model();
        const Publisher publisher = publisher_on(ring, whole);
        CHECK(look(patience()).error().code == Errc::layout_mismatch);
        REQUIRE_OK(whole_tensors());
    }
    Trainer trainer(ring, trainer_ranks);
    CHECK(whole_tensors().error().code == Errc::unsupported);
    const auto found = look(patience());
    REQUIRE_OK(found);
    WeightLayout wanted;
    for (std::uint32_t rank = 0; rank < trainer_ranks; rank++) {
        const auto part = WeightLayout::from_bytes(trainer.rank(rank).shard.layout());
        REQUIRE_OK(wanted.add(*part));
    }
    CHECK(found->hash() == wanted.hash());
    auto& first = trainer.rank(0).publisher;
    CHECK(first.wait_subscribers(1, Deadline::now()).error().code == Errc::timed_out);
    require_all(trainer.publish(1));
}

TEST_CASE("an engine that the last rank refuses aborts no version at the others") {
    Fleet fleet(1);
    EngineShard shard(1, 2);
    const auto attach = [&] {
        return Subscriber::attach(fleet.ring.name(), shard.list(),
                                  {.name = "refused", .layout = shard.layout()}, patience());
    };
    auto open = put_by_all(fleet.trainer, trainer_ranks, 1);
    const auto refused = attach();
    REQUIRE(!refused);
    CHECK(refused.error().code == Errc::busy);
    CHECK(refused.error().message.contains("all 1 seats"));
    fleet.commit(open, 1);
    for (std::uint32_t rank = 0; rank < trainer_ranks; rank++) {
        auto& publisher = fleet.trainer.rank(rank).publisher;
        CHECK(publisher.wait_subscribers(2, Deadline::now()).error().code == Errc::timed_out);
    }
    CHECK(first_rank(fleet.ring).aborts == 0);

    fleet.engine.reset();  // its seat is free
    auto fine = attach();
    REQUIRE_OK(fine);
    CHECK(*take(*fine) == 1);
    CHECK(shard.holds(1));
}

TEST_CASE("versions go on while an engine waits for a rank") {
    for (const MessageKind kept : {MessageKind::hello_subscriber, MessageKind::ready}) {
        CAPTURE(kept);
        Fleet fleet;
        Between last(fleet.ring, trainer_ranks - 1, kept);
        auto open = put_by_all(fleet.trainer, trainer_ranks, 1);
        std::unique_ptr<Engine> late;
        std::thread coming([&] { late = engine_on(fleet.ring, 1, 2); });
        last.await_kept();
        fleet.commit(open, 1);
        // More of them than there are slots.
        for (std::int64_t version = 2; version <= 4; version++) {
            open = put_by_all(fleet.trainer, trainer_ranks, version);
            fleet.commit(open, version);
        }
        auto& first = fleet.trainer.rank(0).publisher;
        CHECK(first.wait_subscribers(2, Deadline::now()).error().code == Errc::timed_out);
        last.let_go();
        coming.join();
        CHECK(*take(late->subscriber) == 4);
        CHECK(late->shard.holds(4));
        REQUIRE_OK(first.wait_subscribers(2, patience()));
    }
}

TEST_CASE("a rank that goes while an engine attaches leaves it no seat at the others") {
    for (const MessageKind kept : {MessageKind::hello_subscriber, MessageKind::ready}) {
        CAPTURE(kept);
        Fleet fleet;
        Between last(fleet.ring, trainer_ranks - 1, kept);
        auto open = put_by_all(fleet.trainer, trainer_ranks, 1);
        std::unique_ptr<Engine> late;
        std::thread coming([&] { late = engine_on(fleet.ring, 1, 2); });
        last.await_kept();
        last.vanish();
        fleet.commit(open, 1);
        const auto seats = [&] { return first_rank(fleet.ring).subscribers.size(); };
        for (const Deadline deadline = patience(); seats() != 1; nap()) REQUIRE(!deadline.passed());
        open = put_by_all(fleet.trainer, trainer_ranks, 2);
        fleet.commit(open, 2);
        CHECK(first_rank(fleet.ring).aborts == 0);
        last.let_go();
        last.appear();
        coming.join();
        CHECK(*take(late->subscriber) == 2);
        CHECK(late->shard.holds(2));
    }
}

TEST_CASE("an engine that dies between its seats aborts no version") {
    Fleet fleet;
    auto open = put_by_all(fleet.trainer, trainer_ranks, 1);
    {
        const Stranger first(fleet.ring, 0);
        const Stranger second(fleet.ring, 1);
    }
    fleet.commit(open, 1);
    std::optional<Stranger> first(std::in_place, fleet.ring, 0U);
    open = put_by_all(fleet.trainer, trainer_ranks, 2);
    first.reset();
    fleet.commit(open, 2);
    CHECK(first_rank(fleet.ring).aborts == 0);
}

TEST_CASE("a version that is begun behind attach waits for the engine, however late its message") {
    Fleet fleet;
    std::vector<Stranger> seats;
    seats.reserve(trainer_ranks);
    for (std::uint32_t rank = 0; rank < trainer_ranks; rank++) seats.emplace_back(fleet.ring, rank);
    for (const auto& seat : seats) store_release(seat.control->own().attached, 1U);
    auto open = put_by_all(fleet.trainer, trainer_ranks, 1);
    auto update = staged_by(*fleet.engine);
    const auto waits = open[0].wait_staged(soon());
    REQUIRE(!waits);
    CHECK(waits.error().message.contains("'stranger'"));
    seats.clear();
    const auto ended = open[0].wait_staged(patience());
    REQUIRE(!ended);
    CHECK(ended.error().code == Errc::peer_gone);
}

}  // namespace rollring::test
