#pragma once
// An HTTP/1.1 server: requests are read, bounded and unpacked, and a function answers. Boost.Beast
// implements the protocol.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <semaphore>  // tidy-ok: the standard's name
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "cli/http/http_limits.hpp"
#include "cli/http/socket.hpp"

namespace rollring::cli {

// A refused body; `status` is the answer's.
struct BadBody : std::runtime_error {
    BadBody(int code, const std::string& why) : std::runtime_error(why), status(code) {}
    int status;
};

struct HttpRequest {
    std::string method;
    std::string path;            // without the query
    std::string body;            // unpacked
    std::function<bool()> gone;  // the client has hung up, or the server must end
};

struct HttpAnswer {
    int status = 200;
    std::string body;
    std::string content_type = "application/json";
    std::function<void(bool written)> done = {};  // called once, in the same thread
};

// One thread per connection. Any of them calls `answer`, several at a time.
class HttpServer {
  public:
    using Handler = std::function<HttpAnswer(const HttpRequest&)>;

    // With a token, a client without `Authorization: Bearer <token>` is answered 401.
    HttpServer(Listener listener, HttpLimits limits, std::string token, Handler answer);
    ~HttpServer();  // hangs up, and waits for running answers

    void run();  // until interrupted()
    [[nodiscard]] const Listener& listener() const { return listener_; }

  private:
    struct Visitor {
        explicit Visitor(Socket socket) : connection(std::move(socket)) {}
        Connection connection;
        std::jthread thread = {};
        std::atomic<bool> left = false;
    };
    class Visit;

    void sweep();  // joins those that have left
    bool receive(Visitor& visitor);
    void turn_away(const std::string& why);

    Listener listener_;
    HttpLimits limits_;
    std::string token_;
    Handler answer_;
    std::counting_semaphore<> large_bodies_;  // tidy-ok: the standard's name
    std::atomic<bool> ending_ = false;
    std::mutex mutex_;  // of the list; a client's own data belong to its thread
    std::list<Visitor> visitors_;
};

}  // namespace rollring::cli
