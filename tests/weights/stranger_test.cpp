// Subscribers that are half gone: the byte that proves their life, or their socket, alone.

#include "control_map.hpp"
#include "hostile_channel.hpp"
#include "liveness.hpp"

namespace rollring::test {
namespace {

// A subscriber by hand, up to "ready": its socket and its byte can be let go of one by one.
struct Stranger {
    explicit Stranger(const Channel& channel) : socket(channel.connect()) {
        REQUIRE_OK(send_message(socket.get(), channel.hello()));
        auto welcome = receive_message(socket.get(), patience());
        REQUIRE_OK(welcome);
        auto mapped =
            PeerControl::accept(std::move(welcome->fds[0]), welcome->message.control_bytes);
        REQUIRE_OK(mapped);
        control = std::move(*mapped);
        REQUIRE_OK(control->take_seat(welcome->message.seat));
        auto taken =
            LifeLock::take(control->memory().fd(), LifeByte::subscriber(welcome->message.seat));
        REQUIRE(taken);
        life = std::move(*taken);
        REQUIRE(life);
        for (auto* word : {&control->own().read_done, &control->own().publications_read}) {
            poke(*word, std::uint64_t{0});
        }
        poke(control->own().closed, 0U);
        store_release(control->own().epoch, welcome->message.epoch);
        REQUIRE_OK(send_message(socket.get(), make_message(MessageKind::ready)));
        const auto admitted = receive_message(socket.get(), patience());
        REQUIRE_OK(admitted);
        REQUIRE(admitted->message.kind == MessageKind::admitted);
    }
    Fd socket;
    std::optional<PeerControl> control;
    std::optional<LifeLock> life;
};

}  // namespace

TEST_CASE("the name of a dead subscriber is free, whoever keeps its socket open") {
    const Channel channel;
    Stranger stranger(channel);
    Tensors engine = small_model();
    const auto attach = [&] {
        return Subscriber::attach(channel.ring.name(), engine.list(), {.name = "stranger"},
                                  Deadline::after_ms(200));
    };
    const auto busy = attach();
    REQUIRE(!busy);
    CHECK(busy.error().code == Errc::busy);
    stranger.life.reset();
    const auto fine = attach();
    REQUIRE_OK(fine);
}

TEST_CASE("who hangs up may be reading still: its slots wait for its death") {
    Channel channel;
    channel.works();
    channel.subscriber.reset();
    std::optional<Stranger> stranger(channel);
    const auto put = [&](Transaction& version) {
        return version.put_all(Deadline::after_ms(100));  // more parts than slots
    };
    auto version = channel.publisher.begin(2);
    REQUIRE_OK(version);
    REQUIRE(!put(*version));
    stranger->socket = Fd();
    auto blocked = put(*version);
    REQUIRE(!blocked);
    CHECK(blocked.error().code == Errc::timed_out);
    CHECK(blocked.error().message.contains("'stranger'"));
    stranger->life.reset();
    REQUIRE_OK(version->put_all(patience()));
    version->abort();
}

TEST_CASE("an engine counts once it has confirmed, and one that gave up before never did") {
    Channel channel;
    const auto both_there = [&](Deadline deadline) {
        return channel.publisher.wait_subscribers(2, deadline);
    };
    {
        const Stranger gave_up(channel);
        CHECK(both_there(soon()).error().code == Errc::timed_out);
    }
    channel.works();
    Stranger stays(channel);
    CHECK(both_there(soon()).error().code == Errc::timed_out);
    REQUIRE_OK(send_message(stays.socket.get(), make_message(MessageKind::confirmed)));
    REQUIRE_OK(both_there(patience()));
}

TEST_CASE("an engine that confirms without having been admitted is sent away") {
    Channel channel;
    const Fd socket = channel.connect();
    REQUIRE_OK(send_message(socket.get(), channel.hello()));
    REQUIRE_OK(receive_message(socket.get(), patience()));
    REQUIRE_OK(send_message(socket.get(), make_message(MessageKind::confirmed)));
    const auto answer = receive_message(socket.get(), patience());
    REQUIRE(!answer);
    CHECK(answer.error().code == Errc::peer_gone);
    CHECK(channel.publisher.wait_subscribers(2, soon()).error().code == Errc::timed_out);
}

}  // namespace rollring::test
