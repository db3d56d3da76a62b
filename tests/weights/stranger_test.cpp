// Subscribers that are half gone: the byte that proves their life, or their socket, alone.

#include "stranger.hpp"
#include "hostile_channel.hpp"

namespace rollring::test {

TEST_CASE("the name of a dead subscriber is free, whoever keeps its socket open") {
    const Channel channel;
    Stranger stranger(channel.ring);
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
    std::optional<Stranger> stranger(channel.ring);
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
        const Stranger gave_up(channel.ring);
        CHECK(both_there(soon()).error().code == Errc::timed_out);
    }
    channel.works();
    Stranger stays(channel.ring);
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
