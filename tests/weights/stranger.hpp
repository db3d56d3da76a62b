#pragma once
// A subscriber by hand, up to "admitted": its socket and its byte can be let go of one by one, in
// any order, as those of a process that dies or hangs.

#include <cstring>
#include <optional>
#include <string>

#include "channel.hpp"
#include "control_map.hpp"
#include "control_socket.hpp"
#include "liveness.hpp"
#include "ring_link.hpp"
#include "words.hpp"

namespace rollring::test {

inline weights::Message hello_on(const TestRing& ring, weights::MessageKind kind) {
    const auto link = weights::RingLink::attach(ring.name(), patience(), false);
    REQUIRE_OK(link);
    weights::Message message = weights::make_message(kind);
    message.ring_id = link->ring_id();
    message.token = link->token();
    std::strcpy(message.name, "stranger");
    return message;
}

struct Stranger {
    explicit Stranger(const TestRing& ring, std::uint32_t rank = 0) {
        using namespace weights;
        auto connected = connect_to(ring.name(), rank);
        REQUIRE_OK(connected);
        socket = std::move(*connected);
        REQUIRE_OK(send_message(socket.get(), hello_on(ring, MessageKind::hello_subscriber)));
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
        poke(control->own().attached, 0U);
        poke(control->own().staged, std::uint64_t{0});
        poke(control->own().live_version, std::int64_t{-1});
        store_release(control->own().epoch, welcome->message.epoch);
        REQUIRE_OK(send_message(socket.get(), make_message(MessageKind::ready)));
        const auto admitted = receive_message(socket.get(), patience());
        REQUIRE_OK(admitted);
        REQUIRE(admitted->message.kind == MessageKind::admitted);
    }
    Fd socket;
    std::optional<weights::PeerControl> control;
    std::optional<LifeLock> life;
};

}  // namespace rollring::test
