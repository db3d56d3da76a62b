#pragma once
// The other process of a test: this program anew, in a role, at the other end of a socket. It has
// its own CUDA context; nothing of ours is used between fork and exec.

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "backend.hpp"

namespace rollring::test {

struct Message {
    char what = 0;  // see roles.cpp
    device::BlockTicket ticket;
    std::uint64_t value = 0;
    std::array<char, 400> text{};  // of an error; empty: none
};

// A message and the descriptor that came with it.
struct Received {
    Message message;
    Fd fd;
};

class Wire {
  public:
    explicit Wire(Fd socket) : socket_(std::move(socket)) {}
    void send(const Message& message, int fd = -1) const;
    Received receive() const;  // Failure if the other end is gone

  private:
    Fd socket_;
};

constexpr int role_socket = 3;  // where a role finds its end

class Peer {
  public:
    explicit Peer(const std::string& role);
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;
    ~Peer() { kill(); }

    [[nodiscard]] const Wire& wire() const { return wire_; }
    // Sends and waits for the answer; Failure if that is an error.
    Received ask(const Message& message, int fd = -1) const;
    void kill();  // SIGKILL, and waits until it is gone

  private:
    Peer(const std::string& role, std::array<Fd, 2> ends);
    Wire wire_;
    pid_t pid_ = -1;
};

int run_role(const std::string& role);

}  // namespace rollring::test
