#include "peer.hpp"

#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <type_traits>

#include "device.hpp"

namespace rollring::test {
namespace {

static_assert(std::is_trivially_copyable_v<Message>);

std::string reason() {
    return std::generic_category().message(errno);
}

std::array<Fd, 2> socket_pair() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        throw Failure(fmt::format("socketpair: {}", reason()));
    }
    return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

void Wire::send(const Message& message, int fd) const {
    iovec part{const_cast<Message*>(&message), sizeof message};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof fd)] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (fd >= 0) {
        header.msg_control = space;
        header.msg_controllen = sizeof space;
        cmsghdr* rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof fd);
        std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    if (sendmsg(socket_.get(), &header, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof message)) {
        throw Failure(fmt::format("cannot send to the other process: {}", reason()));
    }
}

Received Wire::receive() const {
    Received got;
    iovec part{&got.message, sizeof got.message};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = space;
    header.msg_controllen = sizeof space;
    ssize_t bytes = -1;
    do {
        bytes = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    } while (bytes < 0 && errno == EINTR);
    if (bytes != static_cast<ssize_t>(sizeof got.message)) {
        throw Failure("the other process is gone");
    }
    if (const cmsghdr* rights = CMSG_FIRSTHDR(&header); rights != nullptr) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
        got.fd = Fd(fd);
    }
    return got;
}

Peer::Peer(const std::string& role) : Peer(role, socket_pair()) {}

Peer::Peer(const std::string& role, std::array<Fd, 2> ends) : wire_(std::move(ends[0])) {
    const char* arguments[] = {"gpu_test", "--role", role.c_str(), nullptr};
    const int theirs = ends[1].get();
    pid_ = fork();
    if (pid_ < 0) throw Failure(fmt::format("fork: {}", reason()));
    if (pid_ == 0) {  // only calls that are safe in a forked thread, until exec
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (theirs == role_socket) {
            // dup2 to itself would leave close-on-exec set.
            const int moved = dup(theirs);
            if (moved >= 0) dup2(moved, role_socket);
        } else {
            dup2(theirs, role_socket);
        }
        execv("/proc/self/exe", const_cast<char**>(arguments));
        _exit(127);
    }
}

Received Peer::ask(const Message& message, int fd) const {
    wire_.send(message, fd);
    Received answer = wire_.receive();
    if (answer.message.text[0] != 0) throw Failure(answer.message.text.data());
    return answer;
}

void Peer::kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
    pid_ = -1;
}

}  // namespace rollring::test
