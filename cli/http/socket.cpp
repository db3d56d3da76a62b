#include "cli/http/socket.hpp"

#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

namespace rollring::cli {
namespace {

constexpr int backlog = 128;

boost::system::error_code last_error() {
    return {errno, boost::system::system_category()};
}

bool is_loopback(const sockaddr& address) {
    if (address.sa_family == AF_INET) {
        const auto& four = reinterpret_cast<const sockaddr_in&>(address);
        return ntohl(four.sin_addr.s_addr) >> 24 == 127;
    }
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
}

std::uint16_t bound_port(int descriptor) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
    return ntohs(address.ss_family == AF_INET
                     ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                     : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

Socket bind_to(const addrinfo& where) {
    Socket socket(::socket(where.ai_family, where.ai_socktype | SOCK_CLOEXEC, where.ai_protocol));
    if (socket.descriptor() < 0) return socket;
    const int on = 1;
    ::setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(socket.descriptor(), where.ai_addr, where.ai_addrlen) != 0 ||
        ::listen(socket.descriptor(), backlog) != 0) {
        const int error = errno;
        socket = Socket();
        errno = error;
    }
    return socket;
}

}  // namespace

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
}

Socket::~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

void Socket::shut_down() const {
    ::shutdown(descriptor_, SHUT_RDWR);
}

bool Connection::wait_for(short events, boost::system::error_code& error) const {
    pollfd one{socket_.descriptor(), events, 0};
    int ready = 0;
    do {
        ready = ::poll(&one, 1, static_cast<int>(wait_ms_));
    } while (ready < 0 && errno == EINTR);
    if (ready > 0) return true;
    error = ready == 0 ? boost::asio::error::timed_out : last_error();
    return false;
}

std::size_t Connection::receive(void* to, std::size_t most, boost::system::error_code& error) {
    error = {};
    if (!wait_for(POLLIN, error)) return 0;
    const ssize_t got = ::recv(socket_.descriptor(), to, most, 0);
    if (got > 0) return static_cast<std::size_t>(got);
    error = got == 0 ? boost::asio::error::eof : last_error();
    return 0;
}

std::size_t Connection::send(const void* from, std::size_t most, boost::system::error_code& error) {
    error = {};
    if (!wait_for(POLLOUT, error)) return 0;
    const ssize_t put = ::send(socket_.descriptor(), from, most, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0) return static_cast<std::size_t>(put);
    if (errno != EAGAIN) error = last_error();
    return 0;
}

bool Connection::gone() const {
    pollfd one{socket_.descriptor(), POLLRDHUP, 0};
    return ::poll(&one, 1, 0) > 0;
}

void Connection::say_goodbye(std::int64_t moment_ms) {
    constexpr std::size_t most = std::size_t{64} << 20;
    ::shutdown(socket_.descriptor(), SHUT_WR);
    wait_at_most(moment_ms);
    std::array<char, 16384> unheard{};
    boost::system::error_code error;
    for (std::size_t heard = 0; heard < most && !error;) {
        heard += receive(unheard.data(), unheard.size(), error);
    }
    shut_down();
}

Result<Listener> Listener::open(const std::string& host, std::uint16_t port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const int known = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (known != 0) {
        return refused(Errc::invalid_argument,
                       fmt::format("--host {}: {}", host, ::gai_strerror(known)));
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
    // An IPv4 address if there is one, because clients look for localhost there first.
    const addrinfo* chosen = found;
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
        if (one->ai_family == AF_INET) chosen = one;
        if (one->ai_family == AF_INET) break;
    }
    Listener listener;
    listener.socket_ = bind_to(*chosen);
    if (listener.socket_.descriptor() < 0) {
        return refused(errno == EADDRINUSE ? Errc::busy : Errc::system,
                       fmt::format("cannot listen on {} port {}: {}", host, port,
                                   std::generic_category().message(errno)));
    }
    listener.port_ = bound_port(listener.socket_.descriptor());
    listener.loopback_ = is_loopback(*chosen->ai_addr);
    return listener;
}

Socket Listener::accept(std::int64_t wait_ms) const {
    pollfd one{socket_.descriptor(), POLLIN, 0};
    if (::poll(&one, 1, static_cast<int>(wait_ms)) <= 0) return {};
    Socket socket(::accept4(socket_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.descriptor() < 0) {
        // Without descriptors or memory the client stays in the queue, and poll() would return at
        // once.
        const bool short_of =
            errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (short_of) static_cast<void>(::poll(nullptr, 0, static_cast<int>(wait_ms)));
        return {};
    }
    const int on = 1;
    ::setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return socket;
}

}  // namespace rollring::cli
