// The reason of an engine that cannot attach, or is not attached.

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "channel_names.hpp"
#include "control_socket.hpp"
#include "patience.hpp"
#include "ring_link.hpp"
#include "rollring/weights.hpp"
#include "tell_refusal.hpp"

namespace rollring {
namespace weights {

Result<void> tell_refusal(int socket, const RingLink& link, std::string_view name,
                          std::string_view why) {
    Message message = make_message(MessageKind::refuses);
    message.ring_id = link.ring_id();
    message.token = link.token();
    message.seat = static_cast<std::uint32_t>(getpid());
    std::memcpy(message.name, name.data(), std::min<std::size_t>(name.size(), 31));
    set_text(message, why);
    if (auto sent = send_message(socket, message); !sent) return sent;
    // A publisher that is stopped hears it later.
    Patience patience(Deadline::after_ms(500));
    static_cast<void>(patience.receive(socket));
    return {};
}

}  // namespace weights

Result<std::uint32_t> refuse_weights(std::string_view ring, std::string_view subscriber,
                                     std::string_view why) {
    const auto link = weights::RingLink::attach(ring, Deadline::now(), false);
    if (!link) return std::unexpected(link.error());
    std::uint32_t told = 0;
    for (const std::uint32_t rank : channel::ranks_of(ring)) {
        const auto socket = weights::connect_to(ring, rank);
        if (socket && weights::tell_refusal(socket->get(), *link, subscriber, why)) told++;
    }
    return told;
}

}  // namespace rollring
