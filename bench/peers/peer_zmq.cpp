// ZeroMQ PUSH/PULL over ipc://. The record is gathered straight into the message and read where it
// lies, as a careful user would do it; its I/O threads may run on any CPU.

#include "peers/peer.hpp"

#include <fmt/core.h>
#include <sched.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>

namespace bench {
namespace {

// A context whose I/O thread keeps the CPUs of the whole program while this thread stays pinned.
class Socket {
  public:
    Socket(Board& board, int type, int high_water, const cpu_set_t& everywhere) : board_(&board) {
        cpu_set_t pinned;
        CPU_ZERO(&pinned);
        sched_getaffinity(0, sizeof pinned, &pinned);
        sched_setaffinity(0, sizeof everywhere, &everywhere);
        context_ = zmq_ctx_new();
        socket_ = zmq_socket(context_, type);  // starts the threads
        sched_setaffinity(0, sizeof pinned, &pinned);
        must(socket_ != nullptr);
        must(zmq_setsockopt(socket_, ZMQ_SNDHWM, &high_water, sizeof high_water) == 0);
        must(zmq_setsockopt(socket_, ZMQ_RCVHWM, &high_water, sizeof high_water) == 0);
    }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    ~Socket() {
        zmq_close(socket_);
        zmq_ctx_term(context_);  // after the last message has left
    }
    void must(bool well) {
        if (!well) board_->give_up(fmt::format("ZeroMQ: {}", zmq_strerror(zmq_errno())));
    }
    [[nodiscard]] void* get() const { return socket_; }

  private:
    Board* board_;
    void* context_;
    void* socket_;
};

Measured run_zmq(std::uint64_t queue_bytes, const Plan& plan, const Cpus& cpus) {
    const std::string path = fmt::format("/tmp/rollring-bench-zmq-{}", getpid());
    const std::string address = "ipc://" + path;
    const Flat flat = Flat::of(plan.n_tokens);
    // Each side has a queue: both together hold as much as the one queue of the others.
    const int high_water = static_cast<int>(std::max<std::uint64_t>(2, queue_bytes / flat.bytes));
    cpu_set_t everywhere;
    CPU_ZERO(&everywhere);
    sched_getaffinity(0, sizeof everywhere, &everywhere);
    const auto produce = [&](Board& board, const Plan& work) {
        const Source source(work.n_tokens);
        Socket socket(board, ZMQ_PUSH, high_water / 2, everywhere);
        socket.must(zmq_connect(socket.get(), address.c_str()) == 0);
        board.meet();
        for (std::uint64_t i = 0; i < work.total(); i++) {
            zmq_msg_t message;
            socket.must(zmq_msg_init_size(&message, flat.bytes) == 0);
            auto* to = static_cast<std::byte*>(zmq_msg_data(&message));
            write_header(to, i, source[i]);
            flat.write(to, source[i]);
            socket.must(zmq_msg_send(&message, socket.get(), 0) >= 0);
        }
    };
    const auto consume = [&](Board& board, const Plan& work) {
        std::vector<std::uint64_t> aligned(flat.bytes / 8);
        Socket socket(board, ZMQ_PULL, high_water / 2, everywhere);
        socket.must(zmq_bind(socket.get(), address.c_str()) == 0);
        Meter meter(board, work);
        board.meet();
        zmq_msg_t message;
        zmq_msg_init(&message);
        while (!meter.done()) {
            socket.must(zmq_msg_recv(&message, socket.get(), 0) >= 0);
            if (zmq_msg_size(&message) != flat.bytes) board.give_up("a message is too short");
            const auto* from = static_cast<const std::byte*>(zmq_msg_data(&message));
            if (reinterpret_cast<std::uintptr_t>(from) % 8 != 0) {
                std::memcpy(aligned.data(), from, flat.bytes);
                from = reinterpret_cast<const std::byte*>(aligned.data());
            }
            check_flat(meter, flat, from, work.n_tokens);
        }
        zmq_msg_close(&message);
    };
    const auto measured = measure({"ZeroMQ", produce, consume}, plan, cpus);
    unlink(path.c_str());
    return measured;
}

}  // namespace

Peer zmq_peer(const PeerOptions& options) {
    return {"zmq", "ZeroMQ PUSH/PULL ipc",
            [bytes = options.queue_bytes](const Plan& plan, const Cpus& cpus) {
                return run_zmq(bytes, plan, cpus);
            }};
}

}  // namespace bench
