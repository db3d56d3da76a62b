#pragma once
// A board and workers that die at any moment, and a ledger of which requests were finished.

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/load.hpp"

namespace rollring::test {

inline constexpr std::uint32_t requests_of_run = 400;
struct RequestLedger {
    std::atomic<std::uint32_t> total;  // requests of this run
    // Of each request: how often a worker was told that it had finished it, or the board that it
    // was given up.
    std::atomic<std::uint32_t> finished[1 << 20];
    std::atomic<std::uint32_t> given_up[1 << 20];
    std::atomic<std::uint32_t> posts;   // ever
    std::atomic<std::uint32_t> before;  // those of boards before the present one
    std::atomic<std::uint64_t> steps;   // grows with all that is done
};

// The bytes of such a request.
struct RequestBody {
    std::uint32_t id;
    std::uint32_t post;  // which of RequestLedger::posts
};

[[nodiscard]] inline bool over(const RequestLedger& ledger, std::uint32_t id) {
    return ledger.finished[id] + ledger.given_up[id] != 0;
}

// A run: a ring, a board and two workers that are started anew whenever they die.
class RequestRun {
  public:
    explicit RequestRun(std::uint32_t total) { ledger_->total = total; }
    RequestRun(const RequestRun&) = delete;
    RequestRun& operator=(const RequestRun&) = delete;
    ~RequestRun() {
        for (Role& role : roles_) {
            if (role.pid != 0) kill_and_collect(role.pid);
        }
    }

    struct Role {
        const char* name;
        pid_t pid = 0;
    };
    Role& board() { return roles_[0]; }
    Role& worker(std::size_t index) { return roles_[1 + index]; }
    [[nodiscard]] const std::string& ring() const { return ring_.name(); }
    void make_ring_again() {
        require(create_ring(ring_.name(), options_).has_value(), "the name is not free");
    }
    [[nodiscard]] std::uint64_t steps() const { return ledger_->steps; }

    void start(Role& role, const std::string& fault = {}) {
        role.pid = start_self({role.name, ring_.name(), ledger_.fd()}, fault);
    }
    void start_all() {
        for (Role& role : roles_) {
            if (role.pid == 0) start(role);
        }
    }
    // Collects one of ours that has ended, or is killed here.
    void kill_one(Role& role) {
        kill_and_collect(role.pid);
        role.pid = 0;
        note_death(role);
    }
    // Waits until the board has seen the end of all requests, and the ledger records it.
    void finish() {
        require(collect(std::exchange(board().pid, 0)) == 0, "the board failed");
        // A process that dies between the end of a request and its note leaves none; a live one
        // notes it now.
        for (const Deadline deadline = patience(); check() > deaths_; std::this_thread::yield()) {
            require(!deadline.passed(), "{} requests have no end after {} deaths", check(),
                    deaths_);
        }
    }
    void note_death(const Role& role) {
        deaths_++;
        board_deaths_ += &role == &board();
    }
    // The number of requests without an end yet. A request has at most one end, and one more for
    // each death of a board.
    std::uint32_t check() {
        std::uint32_t unnoted = 0;
        for (std::uint32_t id = 0; id < ledger_->total; id++) {
            const std::uint32_t finished = ledger_->finished[id];
            const std::uint32_t given_up = ledger_->given_up[id];
            // A finish may have been noted too late for the next board to see it.
            require(finished + given_up <= 1 + board_deaths_,
                    "request {} was finished {} times and given up {} times", id, finished,
                    given_up);
            unnoted += finished + given_up == 0;
        }
        return unnoted;
    }

  private:
    RingOptions options_{.lanes = 1, .lane_bytes = 64 << 10, .requests = 8, .request_bytes = 4096};
    ScratchRing ring_{"requests", options_};
    Shared<RequestLedger> ledger_;
    std::array<Role, 3> roles_{{{"--request-board"}, {"--request-worker"}, {"--request-worker"}}};
    std::uint32_t deaths_ = 0;
    std::uint32_t board_deaths_ = 0;
};

// Of the processes --request-board RING LEDGER and --request-worker RING LEDGER.
int request_board_role(const std::vector<std::string>& arguments);
int request_worker_role(const std::vector<std::string>& arguments);

// So many deaths at random moments.
void request_kills(std::uint64_t kills, Dice& dice);

}  // namespace rollring::test
