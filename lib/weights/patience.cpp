#include "patience.hpp"

#include <algorithm>

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

}  // namespace rollring::weights
