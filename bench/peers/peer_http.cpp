// HTTP + JSON in the shape of the Atropos REST API, in C++ at both ends and in the middle: an
// environment POSTs /scored_data, one group a request; the server parses it and queues it; the
// trainer GETs /batch. Kept connections, no compression, no delays: kinder than the original.

#include "peers/peer.hpp"

#include <fmt/core.h>
#include <httplib.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <mutex>

namespace bench {
namespace {

constexpr std::uint64_t post_sequences = 8;  // sequences a POST
constexpr std::uint64_t get_groups = 4;      // groups a GET
constexpr std::size_t queue_groups = 28;     // 4 MiB of columns; the environment waits above that

using Plain = nlohmann::json;

// Runs in a process of its own until it is killed.
[[noreturn]] void serve(httplib::Server& server) {
    std::mutex mutex;
    std::condition_variable space, arrival;
    std::deque<Plain> queue;
    server.Post("/scored_data", [&](const httplib::Request& request, httplib::Response& response) {
        Plain group = Plain::parse(request.body);
        std::unique_lock lock(mutex);
        space.wait(lock, [&] { return queue.size() < queue_groups; });
        queue.push_back(std::move(group));
        arrival.notify_one();
        response.set_content(R"({"status": "received"})", "application/json");
    });
    server.Get("/batch", [&](const httplib::Request&, httplib::Response& response) {
        Plain batch = Plain::array();
        {
            std::unique_lock lock(mutex);
            arrival.wait(lock, [&] { return queue.size() >= get_groups; });
            for (std::uint64_t i = 0; i < get_groups; i++) {
                batch.push_back(std::move(queue.front()));
                queue.pop_front();
            }
            space.notify_all();
        }
        response.set_content(Plain{{"batch", std::move(batch)}}.dump(), "application/json");
    });
    server.listen_after_bind();
    _exit(1);
}

// A server process while it lives.
class Server {
  public:
    explicit Server(bool realtime) {
        httplib::Server server;
        server.set_tcp_nodelay(true);
        server.set_keep_alive_max_count(1'000'000'000);
        server.set_keep_alive_timeout(60);
        port_ = server.bind_to_any_port("127.0.0.1");
        if (port_ <= 0) throw PeerProblem{"no port of 127.0.0.1"};
        pid_ = fork();
        if (pid_ < 0) fail("fork failed");
        if (pid_ > 0) return;  // our copy of the listening socket closes here
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const sched_param priority{.sched_priority = 1};
        if (realtime) sched_setscheduler(0, SCHED_RR, &priority);  // as the two sides
        serve(server);
    }
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;
    ~Server() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    [[nodiscard]] int port() const { return port_; }

  private:
    int port_;
    pid_t pid_;
};

std::unique_ptr<httplib::Client> connect(int port) {
    auto client = std::make_unique<httplib::Client>("127.0.0.1", port);
    client->set_keep_alive(true);
    client->set_tcp_nodelay(true);
    client->set_read_timeout(60);
    client->set_default_headers({{"Accept-Encoding", "identity"}});
    return client;
}

void post_records(int port, Board& board, const Plan& plan) {
    const Source source(plan.n_tokens);
    const auto client = connect(port);
    board.meet();
    for (std::uint64_t i = 0; i < plan.total(); i += post_sequences) {
        Plain group = {{"env_id", 0}};
        for (std::uint64_t k = i; k < i + post_sequences; k++) {
            const Slice& slice = source[k];
            group["tokens"].push_back(Plain(slice.token_ids));
            group["masks"].push_back(Plain(slice.loss_mask));
            group["inference_logprobs"].push_back(Plain(slice.logprobs));
            group["scores"].push_back(1.0);
            group["overrides"].push_back({{"sequence", k}, {"sum", slice.sum}});
        }
        const auto answer = client->Post("/scored_data", group.dump(), "application/json");
        if (!answer || answer->status != 200) board.give_up("POST /scored_data failed");
    }
}

void get_batches(int port, Board& board, const Plan& plan) {
    const auto client = connect(port);
    Meter meter(board, plan);
    std::vector<std::int32_t> tokens;
    std::vector<float> logprobs;
    std::vector<std::uint8_t> mask;
    board.meet();
    while (!meter.done()) {
        const auto answer = client->Get("/batch");
        if (!answer || answer->status != 200) board.give_up("GET /batch failed");
        const Plain body = Plain::parse(answer->body);
        for (const Plain& group : body.at("batch")) {
            for (std::size_t i = 0; i < group.at("tokens").size(); i++) {
                group["tokens"][i].get_to(tokens);
                group["inference_logprobs"][i].get_to(logprobs);
                group["masks"][i].get_to(mask);
                const std::uint64_t sum = sum_words(tokens.data(), tokens.size() * 4) +
                                          sum_words(logprobs.data(), logprobs.size() * 4) +
                                          sum_words(mask.data(), mask.size());
                const Plain& sent = group["overrides"][i];
                meter.record(sent["sequence"].get<std::uint64_t>(), sum,
                             sent["sum"].get<std::uint64_t>());
            }
        }
    }
}

}  // namespace

Peer http_peer() {
    const auto run = [](const Plan& plan, const Cpus& cpus) {
        const Server server(cpus.realtime);
        const auto with_port = [&](const auto& side) {
            return [&, side](Board& board, const Plan& work) { side(server.port(), board, work); };
        };
        return measure({"HTTP + JSON", with_port(post_records), with_port(get_batches)}, plan,
                       cpus);
    };
    return {"http", "HTTP + JSON, C++", run, 256, post_sequences * get_groups};
}

}  // namespace bench
