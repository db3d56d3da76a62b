// Boost.Interprocess message_queue.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/ipc/message_queue.hpp>  // tidy-ok: a peer, not a part of rollring

#include "peers/peer.hpp"

namespace bench {
namespace {

Measured run_boost(std::uint64_t queue_bytes, const Plan& plan, const Cpus& cpus) {
    using boost::interprocess::message_queue;  // tidy-ok: a peer
    const std::string name = fmt::format("bench-boost-{}", getpid());
    const std::uint64_t bytes = Flat::of(plan.n_tokens).bytes;
    message_queue::remove(name.c_str());
    message_queue queue(boost::interprocess::create_only, name.c_str(),
                        std::max<std::uint64_t>(2, queue_bytes / bytes), bytes);
    const auto send = [&](Board&, std::span<std::byte> from) {
        queue.send(from.data(), from.size(), 0);
    };
    const auto receive = [&](Board&, std::span<std::byte> to) {
        message_queue::size_type got = 0;
        unsigned priority = 0;
        queue.receive(to.data(), to.size(), got, priority);
    };
    const auto measured =
        measure(buffer_transport("Boost message_queue", send, receive), plan, cpus);
    message_queue::remove(name.c_str());
    return measured;
}

}  // namespace

Peer boost_peer(const PeerOptions& options) {
    return {"boost", "Boost message_queue",
            [bytes = options.queue_bytes](const Plan& plan, const Cpus& cpus) {
                return run_boost(bytes, plan, cpus);
            }};
}

}  // namespace bench
