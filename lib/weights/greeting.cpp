#include "greeting.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "control_socket.hpp"
#include "ring_link.hpp"
#include "sealed.hpp"
#include "words.hpp"

namespace rollring::weights {
namespace {

constexpr std::int64_t piece_ns = 50'000'000;

}  // namespace

Deadline Patience::piece() const {
    return {std::min(deadline_.at_ns, Deadline::after_ns(piece_ns).at_ns)};
}

bool Patience::over() {
    if (stopped_ || deadline_.passed()) return true;
    if (keep_waiting_ == nullptr || !*keep_waiting_) return false;
    const std::int64_t now = monotonic_ns();
    if (now - asked_ns_ < piece_ns) return false;
    asked_ns_ = now;
    stopped_ = !(*keep_waiting_)();
    return stopped_;
}

void Patience::extend(std::int64_t worked_ns) {
    if (deadline_.at_ns != 0 && deadline_.at_ns < Deadline::never().at_ns - worked_ns) {
        deadline_.at_ns += worked_ns;
    }
}

Result<Received> Patience::receive(int socket) {
    for (;;) {
        auto received = receive_message(socket, piece());
        if (received || received.error().code != Errc::timed_out || over()) return received;
    }
}

namespace {

// U+D800 to U+DFFF, encoded: this is not UTF-8, so other software could not print the name.
bool has_half_pair(std::string_view text) {
    return std::ranges::adjacent_find(text, [](unsigned char first, unsigned char second) {
               return first == 0xed && second >= 0xa0;
           }) != text.end();
}

}  // namespace

Result<void> check_end_name(std::string_view what, std::string_view name) {
    const bool fits = !name.empty() && name.size() <= end_name_bytes_max;
    if (fits && is_plain(name) && !has_half_pair(name)) return {};
    return refused(Errc::invalid_argument,
                   fmt::format("the name of a {} has 1 to {} bytes of UTF-8 without control "
                               "characters; '{}' has {} bytes",
                               what, end_name_bytes_max, name, name.size()));
}

Result<void> check_engine(const SubscriberOptions& options) {
    if (auto named = check_end_name("subscriber", options.name); !named) return named;
    const double share = options.staging_share;
    if (!(share > 0 && share <= 1)) {
        return refused(
            Errc::invalid_argument,
            fmt::format("SubscriberOptions::staging_share is above 0 and up to 1, not {}", share));
    }
    if (share < 1 && options.staging != Staging::delta) {
        return refused(Errc::invalid_argument,
                       "SubscriberOptions::staging_share is for Staging::delta");
    }
    return {};
}

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

Result<void> tell_refusal(int socket, const RingLink& link, std::string_view name,
                          std::string_view why) {
    Message message = make_message(MessageKind::refuses);
    message.ring_id = link.ring_id();
    message.token = link.token();
    message.seat = static_cast<std::uint32_t>(getpid());
    std::memcpy(message.name, name.data(), std::min<std::size_t>(name.size(), 31));
    set_text(message, why);
    if (auto sent = send_message(socket, message); !sent) return sent;
    // A stopped publisher receives it later.
    Patience patience(Deadline::after_ms(500));
    static_cast<void>(patience.receive(socket));
    return {};
}

}  // namespace rollring::weights
