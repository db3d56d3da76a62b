// Boost.Interprocess message_queue.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/ipc/message_queue.hpp>  // tidy-ok: a peer, not a part of rollring

#include "peer.hpp"

namespace bench {
namespace {

Measured run_boost(std::uint64_t queue_bytes, const Plan& plan, const Cpus& cpus) {
    using boost::interprocess::message_queue;  // tidy-ok: a peer
    const std::string name = fmt::format("bench-boost-{}", getpid());
    const std::uint64_t bytes = Flat::of(plan.n_tokens).bytes;
    message_queue::remove(name.c_str());
    message_queue queue(boost::interprocess::create_only, name.c_str(),
                        std::max<std::uint64_t>(2, queue_bytes / bytes), bytes);
    const auto produce = [&](Board& board, const Plan& work) {
        const Source source(work.n_tokens);
        const Flat flat = Flat::of(work.n_tokens);
        std::vector<std::byte> scratch(flat.bytes);
        board.meet();
        for (std::uint64_t i = 0; i < work.total(); i++) {
            write_header(scratch.data(), i, source[i]);
            flat.write(scratch.data(), source[i]);
            queue.send(scratch.data(), scratch.size(), 0);
        }
    };
    const auto consume = [&](Board& board, const Plan& work) {
        const Flat flat = Flat::of(work.n_tokens);
        std::vector<std::byte> scratch(flat.bytes);
        Meter meter(board, work);
        board.meet();
        while (!meter.done()) {
            message_queue::size_type got = 0;
            unsigned priority = 0;
            queue.receive(scratch.data(), scratch.size(), got, priority);
            check_flat(meter, flat, scratch.data(), work.n_tokens);
        }
    };
    const auto measured = measure({"Boost message_queue", produce, consume}, plan, cpus);
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
