#include "greeting.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rollring::weights {

Result<Received> greet(int socket, MessageKind kind, const RingLink& link, std::string_view name,
                       Deadline deadline) {
    Message hello = make_message(kind);
    hello.ring_id = link.ring_id();
    hello.token = link.token();
    std::memcpy(hello.name, name.data(), std::min<std::size_t>(name.size(), 31));
    if (auto sent = send_message(socket, hello); !sent) return std::unexpected(sent.error());
    auto answer = receive_message(socket, deadline);
    if (!answer) return answer;
    if (answer->message.kind == MessageKind::refusal) {
        const auto code = static_cast<Errc>(answer->message.code);
        const bool known = !rollring::name(code).empty();
        return refused(known ? code : Errc::bad_manifest, text_of(answer->message));
    }
    if (answer->message.kind != MessageKind::welcome || answer->fds.size() < 2) {
        return refused(Errc::bad_manifest, "the publisher's welcome message is invalid");
    }
    return answer;
}

}  // namespace rollring::weights
