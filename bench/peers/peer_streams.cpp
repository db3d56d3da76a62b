// Peers made of system calls, and the bare ends of the scale: a copy, the limit, rollring itself.

#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peers/peer.hpp"
#include "ring/ring_transport.hpp"
#include "stash/stash_transport.hpp"

namespace bench {
namespace {

// No transport at all: one process gathers a record and reads it back.
Transport memcpy_transport(std::uint32_t n_tokens) {
    const auto consume = [flat = Flat::of(n_tokens)](Board& board, const Plan& plan) {
        const Source source(plan.n_tokens);
        std::vector<std::byte> scratch(flat.bytes + 64);
        Meter meter(board, plan);
        board.meet();
        for (std::uint64_t i = 0; !meter.done(); i++) {
            write_header(scratch.data(), i, source[i]);
            flat.write(scratch.data(), source[i]);
            check_flat(meter, flat, scratch.data(), plan.n_tokens);
        }
    };
    return {"memcpy, one process", [](Board& board, const Plan&) { board.meet(); }, consume};
}

// A byte stream: the next call moves the bytes that a call leaves over.
template <class Call>
Hand all_of(const Call& call) {
    return [call](Board& board, std::span<std::byte> left) {
        while (!left.empty()) {
            const ssize_t n = call(left.data(), left.size());
            if (n <= 0) board.give_up("read or write failed");
            left = left.subspan(static_cast<std::size_t>(n));
        }
    };
}

Measured run_stream(bool pipe_instead, std::uint64_t queue_bytes, const Plan& plan,
                    const Cpus& cpus) {
    int ends[2];  // read, write
    const int made = pipe_instead ? pipe(ends) : socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    if (made != 0) fail("no socket or pipe");
    const int bytes = static_cast<int>(queue_bytes);
    for (const int end : ends) {  // best effort: the system has a maximum
        if (pipe_instead) break;
        setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        setsockopt(end, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
    const auto measured = measure(
        buffer_transport(
            pipe_instead ? "pipe" : "UNIX stream",
            all_of([&](void* from, std::size_t size) { return write(ends[1], from, size); }),
            all_of([&](void* to, std::size_t size) { return read(ends[0], to, size); })),
        plan, cpus);
    close(ends[0]);
    close(ends[1]);
    return measured;
}

}  // namespace

void write_header(std::byte* to, std::uint64_t sequence, const Slice& slice) {
    const FlatHeader header{sequence, slice.sum, slice.token_ids.size()};
    std::memcpy(to, &header, sizeof header);
}

void check_flat(Meter& meter, const Flat& flat, const std::byte* from, std::uint32_t n_tokens) {
    FlatHeader header;
    std::memcpy(&header, from, sizeof header);
    meter.record(header.sequence, flat.sum(from, n_tokens), header.sum);
}

Transport buffer_transport(const std::string& name, const Hand& send, const Hand& receive) {
    const auto produce = [send](Board& board, const Plan& plan) {
        const Source source(plan.n_tokens);
        const Flat flat = Flat::of(plan.n_tokens);
        std::vector<std::byte> buffer(flat.bytes);
        board.meet();
        for (std::uint64_t i = 0; i < plan.total(); i++) {
            write_header(buffer.data(), i, source[i]);
            flat.write(buffer.data(), source[i]);
            send(board, buffer);
        }
    };
    const auto consume = [receive](Board& board, const Plan& plan) {
        const Flat flat = Flat::of(plan.n_tokens);
        std::vector<std::byte> buffer(flat.bytes);
        Meter meter(board, plan);
        board.meet();
        while (!meter.done()) {
            receive(board, buffer);
            check_flat(meter, flat, buffer.data(), plan.n_tokens);
        }
    };
    return {name, produce, consume};
}

std::vector<Peer> own_peers(const PeerOptions& options) {
    RingTransport ring;
    ring.soft_bytes = options.queue_bytes;
    const auto bare = std::make_shared<BareHandoff>(options.n_tokens, options.queue_bytes);
    return {{"rollring", "rollring",
             [=](const Plan& plan, const Cpus& cpus) { return measure_ring(ring, plan, cpus); }},
            {.key = "stash",
             .name = "rollring's stash, groups of one",
             .run = measure_stash_loop,
             .unit = 16},
            {"limit", "limit",
             [=](const Plan& plan, const Cpus& cpus) {
                 return measure(bare->transport(), plan, cpus);
             }},
            {"memcpy", "memcpy, one process", [](const Plan& plan, const Cpus& cpus) {
                 return measure(memcpy_transport(plan.n_tokens), plan, cpus);
             }}};
}

std::vector<Peer> stream_peers(const PeerOptions& options) {
    const auto run = [bytes = options.queue_bytes](bool pipe_instead) {
        return [=](const Plan& plan, const Cpus& cpus) {
            return run_stream(pipe_instead, bytes, plan, cpus);
        };
    };
    return {{"unix", "UNIX stream socket", run(false)}, {"pipe", "pipe", run(true)}};
}

}  // namespace bench
