#include "greeting.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sealed.hpp"

namespace rollring::weights {

Result<Received> greet(int socket, MessageKind kind, const RingLink& link, std::string_view name,
                       Patience& patience) {
    Message hello = make_message(kind);
    hello.ring_id = link.ring_id();
    hello.token = link.token();
    std::memcpy(hello.name, name.data(), std::min<std::size_t>(name.size(), 31));
    if (auto sent = send_message(socket, hello); !sent) return std::unexpected(sent.error());
    auto answer = patience.receive(socket);
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

Result<Manifest> manifest_of(Received& welcome) {
    const std::uint64_t bytes = welcome.message.manifest_bytes;
    auto memory = Sealed::accept(std::move(welcome.fds[1]), bytes, true);
    if (!memory) return std::unexpected(memory.error());
    auto mapping = memory->map(0, bytes, false);
    if (!mapping) return std::unexpected(mapping.error());
    return read_manifest({mapping->data(), mapping->bytes()});
}

}  // namespace rollring::weights
