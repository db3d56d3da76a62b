#include "control_socket.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "channel_names.hpp"
#include "human.hpp"

namespace rollring {
namespace weights {
namespace {

constexpr std::size_t fds_max = slots_limit + 2;

}  // namespace

Message make_message(MessageKind kind) {
    Message message{};
    message.magic = control_magic;
    message.abi = control_abi;
    message.kind = kind;
    return message;
}

void set_text(Message& message, std::string_view text) {
    const std::string_view cut = cut_text(text, sizeof message.text - 1);
    std::memcpy(message.text, cut.data(), cut.size());
}

std::string text_of(const Message& message) {
    return {message.text, strnlen(message.text, sizeof message.text)};
}

std::string name_of(const Message& message) {
    return {message.name, strnlen(message.name, sizeof message.name)};
}

WireTicket to_wire(const SharedBlock& block) {
    const BlockTicket ticket = block.ticket();
    WireTicket wire{.memory = static_cast<std::uint32_t>(ticket.memory),
                    .has_fd = block.fd() >= 0 ? 1U : 0U,
                    .bytes = ticket.bytes,
                    .handle = {}};
    std::memcpy(wire.handle, ticket.handle.data(), sizeof wire.handle);
    return wire;
}

BlockTicket from_wire(const WireTicket& wire) {
    BlockTicket ticket{.memory = static_cast<PayloadMemory>(wire.memory), .bytes = wire.bytes};
    std::memcpy(ticket.handle.data(), wire.handle, sizeof wire.handle);
    return ticket;
}

Result<void> send_message(int socket, const Message& message, std::span<const int> fds) {
    iovec data{const_cast<Message*>(&message), sizeof message};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(fds_max * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
        header.msg_control = control.data();
        header.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    for (;;) {
        // If the buffer is full, the peer does not read its messages: an error, and no wait.
        if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
        if (errno == EINTR) continue;
        if (errno == EPIPE || errno == ECONNRESET) {
            return failed(Errc::peer_gone, 0, "the other end of the weight channel has closed");
        }
        return failed(Errc::system, errno, "cannot send on the weight channel's socket");
    }
}

Result<Received> receive_message(int socket, Deadline deadline) {
    Received received;
    iovec data{&received.message, sizeof received.message};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(fds_max * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    ssize_t got = 0;
    for (;;) {
        got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (got >= 0 || (errno != EAGAIN && errno != EINTR)) break;
        pollfd wait{.fd = socket, .events = POLLIN, .revents = 0};
        const std::int64_t left_ms = (deadline.at_ns - monotonic_ns()) / 1'000'000 + 1;
        if (deadline.passed()) {
            return failed(Errc::timed_out, 0, "the other end of the weight channel did not answer");
        }
        poll(&wait, 1, static_cast<int>(std::clamp<std::int64_t>(left_ms, 1, 1000)));
    }
    for (cmsghdr* at = got < 0 ? nullptr : CMSG_FIRSTHDR(&header); at != nullptr;
         at = CMSG_NXTHDR(&header, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
        for (std::size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
            received.fds.emplace_back(fd);
        }
    }
    if (got == 0 || (got < 0 && errno == ECONNRESET)) {
        return failed(Errc::peer_gone, 0, "the other end of the weight channel has closed");
    }
    if (got < 0) return failed(Errc::system, errno, "cannot read the weight channel's socket");
    const Message& message = received.message;
    if (static_cast<std::size_t>(got) != sizeof message || message.magic != control_magic ||
        (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || message.tickets_used > slots_limit) {
        return failed(Errc::bad_manifest, 0, "the other end of the socket is not a weight channel");
    }
    if (message.abi != control_abi) {
        return failed(Errc::abi_mismatch, 0,
                      fmt::format("the other end of the weight channel has ABI {}, this program "
                                  "{}: run one version of rollring on both sides",
                                  message.abi, control_abi));
    }
    return received;
}

Result<void> check_peer(int socket) {
    ucred peer{};
    socklen_t bytes = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
        return failed(Errc::system, errno, "cannot identify the other end of the socket");
    }
    if (peer.uid == geteuid()) return {};
    return failed(Errc::permission_denied, 0,
                  fmt::format("the other end of the weight channel runs as {}, this process as {}",
                              user_text(peer.uid), user_text(geteuid())));
}

Result<Listener> Listener::open(std::string_view ring, std::uint32_t rank) {
    for (const Deadline deadline = Deadline::after_ms(2000);;) {
        // The last listener removes the directory, and other processes may do so repeatedly.
        if (deadline.passed()) {
            return failed(Errc::timed_out, 0,
                          fmt::format("{} is removed repeatedly while this process tries to listen "
                                      "there: find the process that removes it",
                                      channel::directory_path()));
        }
        auto directory = channel::open_directory(true);
        if (!directory) {
            if (directory.error().code == Errc::not_found) continue;  // removed meanwhile
            return std::unexpected(directory.error());
        }
        Listener made;
        made.file_ = channel::file_name(ring, rank);
        made.directory_ = std::move(*directory);
        const channel::DirectoryLock lock(made.directory_);
        if (!lock.held() && errno != EWOULDBLOCK) {
            return failed(Errc::system, errno, "cannot lock " + channel::directory_path());
        }
        if (!lock.held()) {
            return failed(Errc::timed_out, 0,
                          fmt::format("another process holds the lock of {} and does not release "
                                      "it (stopped?): resume it, or end it",
                                      channel::directory_path()));
        }
        const auto address = channel::address_of(made.directory_, made.file_);
        if (!address) return std::unexpected(address.error());
        const Fd probe = channel::make_socket();
        made.socket_ = ProcessFd(channel::make_socket());
        if (!probe || !made.socket_) return failed(Errc::system, errno, "cannot make a socket");
        const int answer = channel::try_connect(probe.get(), *address);
        if (answer == 0 || answer == EAGAIN) {
            return failed(
                Errc::busy, 0,
                fmt::format("ring {} already has a live publisher of rank {}", ring, rank));
        }
        // Only a name that refuses connections is proven dead.
        if (answer != ECONNREFUSED && answer != ENOENT) {
            return failed(Errc::system, answer,
                          fmt::format("cannot determine whether rank {} of ring {} has a publisher",
                                      rank, ring));
        }
        if (answer == ECONNREFUSED) unlinkat(made.directory_.get(), made.file_.c_str(), 0);
        const int bound =
            bind(made.socket_.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address);
        const int error = errno;
        if (bound != 0 && error == ENOENT) continue;  // the directory was removed meanwhile
        made.bound_ = bound == 0;
        if (made.bound_) made.inode_ = made.named_inode().value_or(0);
        if (bound != 0 || fchmodat(made.directory_.get(), made.file_.c_str(), 0600, 0) != 0 ||
            listen(made.socket_.get(), 64) != 0) {
            return failed(Errc::system, bound != 0 ? error : errno,
                          fmt::format("cannot listen at {}", made.path()));
        }
        return made;
    }
}

Listener::~Listener() {
    if (!directory_ || (bound_ && !socket_)) return;  // in a forked child the name is its parent's
    // Needs no lock: no process replaces a name whose socket lives, and a process that finds the
    // directory gone makes it again.
    if (bound_ && linked()) unlinkat(directory_.get(), file_.c_str(), 0);
    rmdir(channel::directory_path().c_str());  // fails while other names are in it
}

std::optional<ino_t> Listener::named_inode() const {
    struct stat status{};
    const int got = fstatat(directory_.get(), file_.c_str(), &status, AT_SYMLINK_NOFOLLOW);
    if (got == 0) return status.st_ino;
    return errno == ENOENT ? std::nullopt : std::optional(inode_);
}

bool Listener::linked() const {
    return named_inode() == inode_;
}

Result<void> Listener::check() const {
    if (linked()) return {};
    return refused(Errc::not_found,
                   fmt::format("{} was removed while this publisher was open, so that no "
                               "subscriber can attach to it: create a new publisher",
                               path()));
}

std::string Listener::path() const {
    return fmt::format("{}/{}", channel::directory_path(), file_);
}

Result<Fd> connect_to(std::string_view ring, std::uint32_t rank) {
    const auto nobody = [&] {
        return failed(Errc::not_found, 0,
                      fmt::format("ring {} has no publisher of rank {}", ring, rank));
    };
    auto directory = channel::open_directory(false);
    if (!directory) {
        if (directory.error().code == Errc::not_found) return nobody();
        return std::unexpected(directory.error());
    }
    const auto address = channel::address_of(*directory, channel::file_name(ring, rank));
    if (!address) return std::unexpected(address.error());
    Fd socket = channel::make_socket();
    if (!socket) return failed(Errc::system, errno, "cannot make a socket");
    if (const int error = channel::try_connect(socket.get(), *address); error != 0) {
        if (error == ENOENT || error == ECONNREFUSED) return nobody();
        if (error == EAGAIN) {
            return failed(Errc::not_found, 0,
                          fmt::format("the publisher of rank {} on ring {} is stopped or very "
                                      "busy: its queue of connections is full",
                                      rank, ring));
        }
        return failed(error == EACCES ? Errc::permission_denied : Errc::system, error,
                      fmt::format("cannot connect to {}/{}", channel::directory_path(),
                                  channel::file_name(ring, rank)));
    }
    if (auto checked = check_peer(socket.get()); !checked) return std::unexpected(checked.error());
    return socket;
}

void nap() {
    poll(nullptr, 0, 2);
}

}  // namespace weights

std::uint32_t dead_channels(std::string_view ring) {
    return channel::sweep(ring, false);
}

std::uint32_t remove_dead_channels(std::string_view ring) {
    return channel::sweep(ring, true);
}

}  // namespace rollring
