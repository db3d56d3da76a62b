#pragma once
// A look at a ring's requests from another process, as stat_ring() is one at its lanes: attaches
// read-only, takes no part, and shows what was last when the trainer is gone.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/export.hpp"

namespace rollring {

enum class RequestState : std::uint8_t {
    waiting,    // for a worker
    taken,      // by one that is alive, or whose death nobody has seen yet
    withdrawn,  // taken, and not wanted any more: its worker has yet to let go of it
    given_up,   // begun too often; the trainer has yet to ask for it
};
ROLLRING_API std::string_view name(RequestState state);

// One request that is not over.
struct RequestStat {
    std::uint64_t number;  // as RequestBoard::post() has told it
    RequestState state;
    std::uint32_t attempt;      // workers that have begun it before
    std::int64_t age_ns;        // since it was posted
    std::int64_t unchanged_ns;  // since it was posted, taken, let go of or given up
    std::uint64_t bytes;        // of its body
    std::string worker;         // that has it: "name (seat 3)"; empty: none
};

// A seat of workers, and who had it last.
struct RequestWorkerStat {
    std::uint32_t seat;
    std::string name;
    std::uint32_t pid;       // in its own PID namespace: for people, not for decisions
    bool alive;              // proven by its lock
    std::uint64_t taken;     // that it has, the withdrawn ones included
    std::int64_t oldest_ns;  // since it took the first of these; -1: it has none
    std::uint64_t answered;  // of all workers that have had the seat
};

struct RequestsStat {
    std::string ring;
    std::uint64_t places;  // that may be under way at once
    bool used;             // a board or a worker was opened on this ring once
    bool board_alive;
    std::uint32_t board_pid;    // in its own PID namespace, of the latest
    std::uint32_t board_epoch;  // how many boards there were
    std::uint32_t attempts;     // workers that may begin a request
    std::uint64_t workers_alive;
    std::uint64_t waiting;  // now
    std::uint64_t taken;    // now, and not withdrawn
    // Over the ring's life. posted = waiting + taken + answered + given_up + withdrawn, where
    // nobody is in the middle of changing one, or was killed there.
    std::uint64_t posted;
    std::uint64_t answered;
    std::uint64_t given_up;
    std::uint64_t withdrawn;
    std::int64_t oldest_waiting_ns;  // since that one waits; -1: none does
    std::int64_t oldest_taken_ns;    // since that one was taken; -1: none is
    std::vector<RequestWorkerStat> workers;
    std::vector<RequestStat> requests;  // oldest first
};

// Never waits for anybody.
ROLLRING_API Result<RequestsStat> stat_requests(std::string_view ring);

}  // namespace rollring
