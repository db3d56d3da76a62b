#pragma once
// Requests travel the other way: from the trainer to the workers that answer them with records.
//
// For trainers that ask for the completions of certain prompts and wait. One worker at a time has a
// request. If that worker dies or gives it back, another one takes it; a request that was started
// too often is given up, and the trainer's end reports it. A request consists of up to
// RingOptions::request_bytes bytes, whose meaning the two ends agree on.
//
// Requests lie in a shared-memory object of their own. The first end to open creates it with
// RingOptions::requests slots; it is removed with the ring. A request keeps its slot until its
// worker finishes it, so that it survives the worker.
//
// One thread at a time uses an end, except for interrupt(). In a forked child both ends are inert,
// and return Errc::forked. Once the ring was removed they return Errc::closed.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/stat.hpp"
#include "rollring/time.hpp"
#include "rollring/version.hpp"

namespace rollring {

struct RequestBoardOptions {
    // Attempts per request, 1 to 31.
    std::uint32_t attempts = 3;
    // For the ring to appear and the seat to be free.
    std::chrono::nanoseconds attach_timeout = std::chrono::seconds(10);
};

struct RequestCounts {
    std::uint32_t waiting = 0;   // for a worker
    std::uint32_t taken = 0;     // by one that is alive, or whose death was not noticed yet
    std::uint32_t given_up = 0;  // given up and not yet reported
    std::uint32_t workers = 0;   // alive
};

// The trainer's end. One per ring at a time: its seat is free again when its process ends. Requests
// of a predecessor are withdrawn.
class ROLLRING_API RequestBoard {
  public:
    // Errc::busy: another process has the seat.
    static Result<RequestBoard> open(std::string_view ring,
                                     const RequestBoardOptions& options = {});
    RequestBoard(RequestBoard&&) noexcept;
    RequestBoard& operator=(RequestBoard&&) noexcept;
    ~RequestBoard();

    // Posts a request, and returns its number, which no other request of this board has.
    // Errors, after which nothing was posted: timed_out (no slot was free by the deadline),
    // too_large (it can never fit), not_enough_shared_memory.
    Result<std::uint64_t> post(std::span<const std::byte> body, Deadline deadline);

    // Takes a request back: no worker begins it any more, and a worker that has it sees
    // RequestWorker::withdrawn(). False: the request is over.
    bool withdraw(std::uint64_t number);

    // Waits for requests that were given up, and returns their numbers, each once; none at the
    // deadline, or after interrupt().
    Result<std::vector<std::uint64_t>> given_up(Deadline deadline);

    [[nodiscard]] RequestCounts counts() const;

    // Ends the current or else the next wait as if its deadline had passed. Any thread may call it.
    void interrupt();

  private:
    struct ROLLRING_LOCAL Impl;
    explicit RequestBoard(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// A request that a worker has taken.
struct TakenRequest {
    std::uint64_t number = 0;
    std::uint32_t attempt = 0;        // how many workers have begun it before
    std::span<const std::byte> body;  // in the ring; valid until it is finished or given back
    std::uint64_t word = 0;           // for the library
};

// A worker's end. Up to 1,024 per ring; a worker takes as many requests as it likes.
class ROLLRING_API RequestWorker {
  public:
    // `name`: shown to people, up to 39 bytes; empty: the program's name. Waits for the ring to
    // appear until the deadline. Errc::busy: all seats of workers are taken.
    static Result<RequestWorker> open(std::string_view ring, std::string_view name = {},
                                      Deadline deadline = Deadline::after_ms(10'000));
    RequestWorker(RequestWorker&&) noexcept;
    RequestWorker& operator=(RequestWorker&&) noexcept;
    ~RequestWorker();  // gives back the requests that it has not finished

    // The oldest request that no worker has; none at the deadline, or after interrupt().
    Result<std::optional<TakenRequest>> take(Deadline deadline);

    // Marks the request as answered. False if it was withdrawn or is another worker's.
    bool finish(const TakenRequest& request);

    // Gives the request back: another worker may take it, or it is given up. False: as finish().
    bool give_back(const TakenRequest& request);

    // Whether the trainer has taken it back; finish() or give_back() it then.
    [[nodiscard]] bool withdrawn(const TakenRequest& request) const;

    // As RequestBoard::interrupt().
    void interrupt();

  private:
    struct ROLLRING_LOCAL Impl;
    explicit RequestWorker(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// The state of requests, seen from another process, as stat_ring() shows that of a ring's lanes.
// Attaches read-only and takes no part. When the trainer is gone it shows the last state.

enum class RequestState : std::uint8_t {
    waiting,    // for a worker
    taken,      // by one that is alive, or whose death was not noticed yet
    withdrawn,  // taken, and not wanted any more: its worker has yet to let go of it
    given_up,   // begun too often; the trainer has yet to ask for it
};
ROLLRING_API std::string_view name(RequestState state);

// One request that is not over.
struct RequestStat {
    std::uint64_t number;  // as RequestBoard::post() has returned it
    RequestState state;
    std::uint32_t attempt;      // workers that have begun it before
    std::int64_t age_ns;        // since it was posted
    std::int64_t unchanged_ns;  // since it was posted, taken, let go of or given up
    std::uint64_t bytes;        // of its body
    std::string worker;         // that has it: "name (seat 3)"; empty: none
};

// A seat of workers, and its last holder.
struct RequestWorkerStat {
    std::uint32_t seat;
    std::string name;
    std::uint32_t pid;       // in its own PID namespace: for people, not for decisions
    bool alive;              // proven by its lock
    std::uint64_t taken;     // requests that it has, the withdrawn ones included
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
    // Over the ring's life. posted = waiting + taken + answered + given_up + withdrawn, unless a
    // process is changing one at this moment, or was killed while it did.
    std::uint64_t posted;
    std::uint64_t answered;
    std::uint64_t given_up;
    std::uint64_t withdrawn;
    std::int64_t oldest_waiting_ns;  // that it has waited; -1: none waits
    std::int64_t oldest_taken_ns;    // since it was taken; -1: none is taken
    std::vector<RequestWorkerStat> workers;
    std::vector<RequestStat> requests;  // oldest first
};

// Never blocks.
ROLLRING_API Result<RequestsStat> stat_requests(std::string_view ring);

// The fields of these structs, as stat.hpp has them for others.

template <class Visit>
constexpr void each_field(const RequestStat*, Visit&& visit) {
    visit(Field{"number", FieldUnit::none, detail::fact, &RequestStat::number});
    visit(Field{"state", FieldUnit::none, detail::fact, &RequestStat::state});
    visit(Field{"attempt", FieldUnit::none, detail::fact, &RequestStat::attempt});
    visit(Field{"age_s", FieldUnit::seconds, detail::gauge, &RequestStat::age_ns});
    visit(Field{"unchanged_s", FieldUnit::seconds, detail::gauge, &RequestStat::unchanged_ns});
    visit(Field{"bytes", FieldUnit::bytes, detail::fact, &RequestStat::bytes});
    visit(Field{"worker", FieldUnit::none, detail::fact, &RequestStat::worker});
}

template <class Visit>
constexpr void each_field(const RequestWorkerStat*, Visit&& visit) {
    visit(Field{"seat", FieldUnit::none, detail::fact, &RequestWorkerStat::seat});
    visit(Field{"worker", FieldUnit::none, detail::fact, &RequestWorkerStat::name});
    visit(Field{"pid", FieldUnit::none, detail::fact, &RequestWorkerStat::pid});
    visit(Field{"alive", FieldUnit::none, detail::gauge, &RequestWorkerStat::alive,
                "Whether the worker is alive"});
    visit(Field{"taken", FieldUnit::count, detail::gauge, &RequestWorkerStat::taken,
                "Requests that the worker has"});
    visit(Field{"oldest_s", FieldUnit::seconds, detail::gauge, &RequestWorkerStat::oldest_ns,
                "Time since it took the first of these"});
    visit(Field{"answered", FieldUnit::count, detail::counter, &RequestWorkerStat::answered,
                "Requests that workers of this seat have answered"});
}

template <class Visit>
constexpr void each_field(const RequestsStat*, Visit&& visit) {
    visit(Field{"ring", FieldUnit::none, detail::fact, &RequestsStat::ring});
    visit(Field{"places", FieldUnit::count, detail::fact, &RequestsStat::places,
                "Requests that may be under way at once"});
    visit(Field{"used", FieldUnit::none, detail::gauge, &RequestsStat::used,
                "Whether a request board or a worker was ever opened on the ring"});
    visit(Field{"board_alive", FieldUnit::none, detail::gauge, &RequestsStat::board_alive,
                "Whether the request poster is alive"});
    visit(Field{"board_pid", FieldUnit::none, detail::fact, &RequestsStat::board_pid});
    visit(Field{"board_epoch", FieldUnit::none, detail::counter, &RequestsStat::board_epoch,
                "Request boards that have had the ring"});
    visit(Field{"attempts", FieldUnit::none, detail::fact, &RequestsStat::attempts});
    visit(Field{"workers_alive", FieldUnit::count, detail::gauge, &RequestsStat::workers_alive,
                "Live request workers"});
    visit(Field{"waiting", FieldUnit::count, detail::gauge, &RequestsStat::waiting,
                "Requests that wait for a worker"});
    visit(Field{"taken", FieldUnit::count, detail::gauge, &RequestsStat::taken,
                "Requests that a worker has"});
    visit(Field{"posted", FieldUnit::count, detail::counter, &RequestsStat::posted,
                "Requests posted"});
    visit(Field{"answered", FieldUnit::count, detail::counter, &RequestsStat::answered,
                "Requests answered"});
    visit(Field{"given_up", FieldUnit::count, detail::counter, &RequestsStat::given_up,
                "Requests given up, because too many workers had begun them"});
    visit(Field{"withdrawn", FieldUnit::count, detail::counter, &RequestsStat::withdrawn,
                "Requests that the trainer took back"});
    visit(Field{"oldest_waiting_s", FieldUnit::seconds, detail::gauge,
                &RequestsStat::oldest_waiting_ns, "Waiting time of the oldest waiting request"});
    visit(Field{"oldest_taken_s", FieldUnit::seconds, detail::gauge, &RequestsStat::oldest_taken_ns,
                "Time since the oldest taken request was taken"});
}

}  // namespace rollring
