#include "cli/http/http_server.hpp"

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <system_error>
#include <utility>

#include "cli/formats/gzip.hpp"
#include "cli/terminal/interrupts.hpp"
#include "cli/terminal/output.hpp"

namespace rollring::cli {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr std::int64_t look_ms = 100;  // delay until an interrupt is seen
constexpr std::uint32_t header_bytes_max = 64 * 1024;
constexpr std::int64_t refusal_ms = 100;  // new clients wait meanwhile

// In a time that does not depend on the number of correct bytes.
bool same_secret(std::string_view given, std::string_view wanted) {
    unsigned difference = given.size() == wanted.size() ? 0 : 1;
    for (std::size_t i = 0; i < given.size(); i++) {
        const char other = wanted.empty() ? '\0' : wanted[i % wanted.size()];
        difference |= static_cast<unsigned char>(given[i] ^ other);
    }
    return difference == 0;
}

HttpAnswer plain(int status, std::string why) {
    return {.status = status, .body = std::move(why), .content_type = "text/plain; charset=utf-8"};
}

}  // namespace

// One client's requests, one after another.
class HttpServer::Visit {
  public:
    Visit(HttpServer& server, Connection& connection) : server_(&server), line_(&connection) {}

    void run() {
        while (!server_->ending_ && ask()) {
        }
    }
    // Answers 503 without reading the request.
    void refuse(const std::string& why) {
        line_->wait_at_most(refusal_ms);
        write(plain(503, why), false, false);
    }

  private:
    using Parser = http::request_parser<http::string_body>;

    // False: it was the last one.
    bool ask();
    [[nodiscard]] bool allowed(const Parser& parser) const;
    HttpAnswer read_and_answer(Parser& parser);
    bool write(const HttpAnswer& answer, bool keep, bool head);
    void read_body(Parser& parser);

    HttpServer* server_;
    Connection* line_;
    beast::flat_buffer buffer_;
};

bool HttpServer::Visit::allowed(const Parser& parser) const {
    if (server_->token_.empty()) return true;
    const beast::string_view header = parser.get()[http::field::authorization];
    const std::string_view given(header.data(), header.size());
    constexpr std::string_view scheme = "Bearer ";
    return given.starts_with(scheme) && same_secret(given.substr(scheme.size()), server_->token_);
}

bool HttpServer::Visit::ask() {
    Parser parser;
    parser.header_limit(header_bytes_max);
    parser.body_limit(server_->limits_.body_bytes);
    beast::error_code error;
    line_->wait_at_most(server_->limits_.idle_ms);
    http::read_header(*line_, buffer_, parser, error);
    line_->wait_at_most(server_->limits_.silence_ms);
    if (error == http::error::body_limit)
        return write(plain(413, "the body is too long"), false, false);
    if (error && error != http::error::end_of_stream &&
        error.category() == beast::error_code(http::error::bad_method).category()) {
        return write(plain(400, "this is not HTTP: " + error.message()), false, false);
    }
    if (error) return false;
    const bool head = parser.get().method() == http::verb::head;
    if (!allowed(parser)) {
        return write(plain(401, "the server requires its token: Authorization: Bearer TOKEN"),
                     false, head);
    }
    HttpAnswer answer;
    try {
        answer = read_and_answer(parser);
    } catch (const BadBody& bad) {
        answer = plain(bad.status, bad.what());
    } catch (const GzipTooLong&) {
        answer = plain(413, "the unpacked body is too long");
    } catch (const BadGzip&) {
        answer = plain(400, "Invalid gzip payload");  // the text of Atropos' own server
    } catch (const std::exception& failure) {
        answer = plain(500, failure.what());
    }
    const bool keep = parser.is_done() && parser.get().keep_alive() && !server_->ending_;
    return write(answer, keep, head);
}

void HttpServer::Visit::read_body(Parser& parser) {
    beast::error_code error;
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
        http::response<http::empty_body> go_on(http::status::continue_, parser.get().version());
        http::write(*line_, go_on, error);
    }
    http::read(*line_, buffer_, parser, error);
    if (error == http::error::body_limit) throw BadBody(413, "the body is too long");
    if (error) throw BadBody(400, "the body is incomplete: " + error.message());
}

// A large body waits for its turn: until then it stays in the sockets of both sides.
HttpAnswer HttpServer::Visit::read_and_answer(Parser& parser) {
    const auto length = parser.content_length();
    const bool packed = beast::iequals(parser.get()[http::field::content_encoding], "gzip");
    const bool large =
        packed || parser.chunked() || (length && *length > server_->limits_.small_bytes);
    struct Turn {
        decltype(HttpServer::large_bodies_)* of = nullptr;
        ~Turn() {
            if (of != nullptr) of->release();
        }
    } turn;
    const auto gone = [this] { return server_->ending_ || interrupted() || line_->gone(); };
    while (large && turn.of == nullptr) {
        if (server_->large_bodies_.try_acquire_for(std::chrono::milliseconds(look_ms))) {
            turn.of = &server_->large_bodies_;
        } else if (gone()) {
            return plain(503, "the server is shutting down");
        }
    }
    read_body(parser);
    HttpRequest request;
    const auto& message = parser.get();
    request.method = std::string(message.method_string());
    const beast::string_view target = message.target();
    request.path = std::string(target.substr(0, target.find('?')));
    request.body = std::move(parser.get().body());
    if (packed && !request.body.empty()) {
        request.body = unpack_gzip(request.body, server_->limits_.body_bytes);
    }
    request.gone = gone;
    return server_->answer_(request);
}

bool HttpServer::Visit::write(const HttpAnswer& answer, bool keep, bool head) {
    http::response<http::span_body<const char>> response;
    response.version(11);
    response.result(static_cast<unsigned>(answer.status));
    response.set(http::field::content_type, answer.content_type);
    if (answer.status == 401) response.set(http::field::www_authenticate, "Bearer");
    if (answer.status == 405) response.set(http::field::allow, "GET, POST");
    if (answer.status == 503) response.set(http::field::retry_after, "1");
    response.body() = beast::span<const char>(answer.body.data(), head ? 0 : answer.body.size());
    response.content_length(answer.body.size());
    response.keep_alive(keep);
    beast::error_code error;
    http::response_serializer<http::span_body<const char>> serializer(response);
    if (head) {
        http::write_header(*line_, serializer, error);
    } else {
        http::write(*line_, serializer, error);
    }
    if (answer.done) answer.done(!error);
    return keep && !error;
}

HttpServer::HttpServer(Listener listener, HttpLimits limits, std::string token, Handler answer)
    : listener_(std::move(listener)),
      limits_(limits),
      token_(std::move(token)),
      answer_(std::move(answer)),
      large_bodies_(limits.large_bodies) {}

HttpServer::~HttpServer() {
    ending_ = true;
    const std::scoped_lock lock(mutex_);
    for (const Visitor& visitor : visitors_) visitor.connection.shut_down();
    // Their threads end before the list does: each joins in its destructor, and none needs the
    // lock.
    for (Visitor& visitor : visitors_) visitor.thread.join();
}

void HttpServer::sweep() {
    std::list<Visitor> left;
    const std::scoped_lock lock(mutex_);
    for (auto at = visitors_.begin(); at != visitors_.end();) {
        const auto here = at++;
        if (here->left) left.splice(left.end(), visitors_, here);
    }
}

void HttpServer::run() {
    while (!interrupted()) {
        Socket socket = listener_.accept(look_ms);
        sweep();
        if (socket.descriptor() < 0) continue;
        const std::scoped_lock lock(mutex_);
        Visitor& visitor = visitors_.emplace_back(std::move(socket));
        if (visitors_.size() > limits_.connections) {
            turn_away("too many connections");
        } else if (!receive(visitor)) {
            turn_away("the server cannot start a thread");
        }
    }
}

// False: the system has no thread left.
bool HttpServer::receive(Visitor& visitor) {
    try {
        visitor.thread = std::jthread([this, &visitor] {
            try {
                Visit(*this, visitor.connection).run();
            } catch (const std::exception& failure) {
                warn(std::string("a connection failed: ") + failure.what());
            }
            visitor.connection.say_goodbye();
            visitor.left = true;
        });
        return true;
    } catch (const std::system_error&) {
        return false;
    }
}

// The latest client, in the thread of run().
void HttpServer::turn_away(const std::string& why) {
    Connection& connection = visitors_.back().connection;
    try {
        Visit(*this, connection).refuse(why);
        connection.say_goodbye(refusal_ms);
    } catch (const std::exception& failure) {
        warn(std::string("a connection failed: ") + failure.what());
    }
    visitors_.pop_back();
}

}  // namespace rollring::cli
