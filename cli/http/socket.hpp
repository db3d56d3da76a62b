#pragma once
// TCP for the server: sockets that wait with a limit, and that a shutdown wakes.

#include <boost/asio/buffer.hpp>
#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "rollring/error.hpp"

namespace rollring::cli {

// Owns a descriptor.
class Socket {
  public:
    Socket() = default;
    explicit Socket(int descriptor) : descriptor_(descriptor) {}
    Socket(Socket&& other) noexcept;
    Socket& operator=(Socket&& other) noexcept;
    ~Socket();

    [[nodiscard]] int descriptor() const { return descriptor_; }
    // Wakes any thread that waits for it, which then reads the end.
    void shut_down() const;

  private:
    int descriptor_ = -1;
};

// A connected client. It has the interface of a blocking stream for Boost.Beast; each wait for the
// other side has a limit, so that a silent one does not hold a thread forever.
class Connection {
  public:
    explicit Connection(Socket socket) : socket_(std::move(socket)) {}

    template <class Buffers>
    std::size_t read_some(const Buffers& buffers, boost::system::error_code& error) {
        for (auto at = boost::asio::buffer_sequence_begin(buffers);
             at != boost::asio::buffer_sequence_end(buffers); ++at) {
            const boost::asio::mutable_buffer buffer(*at);
            if (buffer.size() != 0) return receive(buffer.data(), buffer.size(), error);
        }
        error = {};
        return 0;
    }
    template <class Buffers>
    std::size_t write_some(const Buffers& buffers, boost::system::error_code& error) {
        for (auto at = boost::asio::buffer_sequence_begin(buffers);
             at != boost::asio::buffer_sequence_end(buffers); ++at) {
            const boost::asio::const_buffer buffer(*at);
            if (buffer.size() != 0) return send(buffer.data(), buffer.size(), error);
        }
        error = {};
        return 0;
    }

    // Boost.Beast demands these, too, and never calls them instead of the others.
    template <class Buffers>
    std::size_t read_some(const Buffers& buffers) {
        boost::system::error_code error;
        const std::size_t got = read_some(buffers, error);
        if (error) throw boost::system::system_error(error);
        return got;
    }
    template <class Buffers>
    std::size_t write_some(const Buffers& buffers) {
        boost::system::error_code error;
        const std::size_t put = write_some(buffers, error);
        if (error) throw boost::system::system_error(error);
        return put;
    }

    void wait_at_most(std::int64_t ms) { wait_ms_ = ms; }  // in each later read or write
    [[nodiscard]] bool gone() const;                       // the other side has hung up
    void shut_down() const { socket_.shut_down(); }
    // Ends our side, and reads the rest for a moment: otherwise an answer given before the whole
    // request was read would be lost with the unread bytes.
    void say_goodbye(std::int64_t moment_ms = 500);

  private:
    std::size_t receive(void* to, std::size_t most, boost::system::error_code& error);
    std::size_t send(const void* from, std::size_t most, boost::system::error_code& error);
    bool wait_for(short events, boost::system::error_code& error) const;

    Socket socket_;
    std::int64_t wait_ms_ = 30'000;
};

// The address at which connections arrive.
class Listener {
  public:
    // An IPv4 or IPv6 address, or a name for one (localhost). Port 0: any free one.
    static Result<Listener> open(const std::string& host, std::uint16_t port);

    // Waits for the next one, up to this long; a socket without a descriptor if none came.
    [[nodiscard]] Socket accept(std::int64_t wait_ms) const;
    [[nodiscard]] std::uint16_t port() const { return port_; }
    // Other machines cannot reach it.
    [[nodiscard]] bool loopback() const { return loopback_; }

  private:
    Socket socket_;
    std::uint16_t port_ = 0;
    bool loopback_ = false;
};

}  // namespace rollring::cli
