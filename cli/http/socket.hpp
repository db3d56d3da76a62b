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
    // Wakes whoever waits for it, in any thread: it then reads the end.
    void shut_down() const;

  private:
    int descriptor_ = -1;
};

// One who calls at the door. What Boost.Beast asks of a stream that blocks; each wait for the other
// side has a limit, so that one who says nothing holds no thread for ever.
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

    // Boost.Beast asks for these, too, and calls them nowhere where the others are.
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

    void wait_at_most(std::int64_t ms) { wait_ms_ = ms; }  // in each read or write from here on
    [[nodiscard]] bool gone() const;                       // the other side has hung up
    void shut_down() const { socket_.shut_down(); }
    // Ends what we say, and hears the rest out for a moment: else a last answer, given before all
    // was heard, is lost with what is unread.
    void say_goodbye(std::int64_t moment_ms = 500);

  private:
    std::size_t receive(void* to, std::size_t most, boost::system::error_code& error);
    std::size_t send(const void* from, std::size_t most, boost::system::error_code& error);
    bool wait_for(short events, boost::system::error_code& error) const;

    Socket socket_;
    std::int64_t wait_ms_ = 30'000;
};

// Where connections come in.
class Listener {
  public:
    // An IPv4 or IPv6 address, or a name that stands for one (localhost). Port 0: any that is free.
    static Result<Listener> open(const std::string& host, std::uint16_t port);

    // Waits for the next for at most so long; a socket without descriptor if none came.
    [[nodiscard]] Socket accept(std::int64_t wait_ms) const;
    [[nodiscard]] std::uint16_t port() const { return port_; }
    // Nobody from another machine can reach it.
    [[nodiscard]] bool loopback() const { return loopback_; }

  private:
    Socket socket_;
    std::uint16_t port_ = 0;
    bool loopback_ = false;
};

}  // namespace rollring::cli
