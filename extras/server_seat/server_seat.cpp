#include "rollring/extras/server_seat.hpp"

#include <fmt/core.h>

#include <utility>

#include "liveness.hpp"
#include "segment.hpp"

namespace rollring {
namespace {

constexpr std::int64_t attach_timeout_ms = 5'000;

}  // namespace

struct ServerSeat::State {
    LifeLock life;
};

ServerSeat::ServerSeat(std::unique_ptr<State> state) : state_(std::move(state)) {}
ServerSeat::ServerSeat(ServerSeat&&) noexcept = default;
ServerSeat& ServerSeat::operator=(ServerSeat&&) noexcept = default;
ServerSeat::~ServerSeat() = default;

Result<ServerSeat> ServerSeat::take(std::string_view ring) {
    const Deadline deadline = Deadline::after_ms(attach_timeout_ms);
    for (;;) {
        auto segment = Segment::attach(ring, deadline);
        if (!segment) return std::unexpected(segment.error());
        auto life = LifeLock::take(segment->fd(), LifeByte::server());
        if (!life) return std::unexpected(life.error());
        if (!life->has_value()) {
            return refused(Errc::busy,
                           fmt::format("another process is the server of ring {}", ring));
        }
        auto stays = segment->stays(deadline);
        if (!stays) return std::unexpected(stays.error());
        if (*stays) return ServerSeat(std::make_unique<State>(State{std::move(**life)}));
    }
}

}  // namespace rollring
