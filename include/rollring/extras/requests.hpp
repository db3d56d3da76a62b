#pragma once
// Requests travel the other way: from the trainer to the workers that answer them with records.
//
// For trainers that ask for the completions of certain prompts and wait. Each request is taken by
// exactly one worker. If that worker dies, or gives it back, the next one takes it; one that has
// been begun too often is given up, and the trainer is told. A request is bytes, of up to
// RingOptions::request_bytes; what they mean is between the two ends.
//
// A ring has room for RingOptions::requests of them. A request keeps its place until its worker is
// done with it, so that it survives the worker.
//
// Both ends: one thread at a time, but for interrupt(). In a forked child they are inert, and
// return Errc::forked. Where the ring was removed they return Errc::closed.

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
#include "rollring/export.hpp"
#include "rollring/time.hpp"

namespace rollring {

struct RequestBoardOptions {
    // Workers that may begin a request, one after another: 1 to 31.
    std::uint32_t attempts = 3;
    // For the ring to appear and the seat to be free.
    std::chrono::nanoseconds attach_timeout = std::chrono::seconds(10);
};

struct RequestCounts {
    std::uint32_t waiting = 0;   // for a worker
    std::uint32_t taken = 0;     // by one that is alive, or whose death nobody has seen yet
    std::uint32_t given_up = 0;  // and not told yet
    std::uint32_t workers = 0;   // alive
};

// The trainer's end. One per ring at a time: its seat is free again when its process ends. What a
// predecessor has posted is withdrawn.
class ROLLRING_API RequestBoard {
  public:
    // Errc::busy: another process has the seat.
    static Result<RequestBoard> open(std::string_view ring,
                                     const RequestBoardOptions& options = {});
    RequestBoard(RequestBoard&&) noexcept;
    RequestBoard& operator=(RequestBoard&&) noexcept;
    ~RequestBoard();

    // Posts a request, and returns its number, which no other request of this board has.
    // Errc::timed_out: all places were taken until the deadline. Errc::too_large: it can never fit.
    // Errc::not_enough_shared_memory. Nothing was posted then.
    Result<std::uint64_t> post(std::span<const std::byte> body, Deadline deadline);

    // Takes a request back: nobody begins it any more, and a worker that has it is told
    // (RequestWorker::withdrawn). False: it is over.
    bool withdraw(std::uint64_t number);

    // Waits for requests that were given up, and returns their numbers, each once; none at the
    // deadline, or after interrupt().
    Result<std::vector<std::uint64_t>> given_up(Deadline deadline);

    [[nodiscard]] RequestCounts counts() const;

    // From any thread: the wait under way, or else the next one, ends as at its deadline.
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
    ~RequestWorker();  // gives back what it has taken and not finished

    // The oldest request that nobody has; none at the deadline, or after interrupt().
    Result<std::optional<TakenRequest>> take(Deadline deadline);

    // It is answered. False: it was withdrawn meanwhile, or is not this worker's.
    bool finish(const TakenRequest& request);

    // Somebody else may take it, or it is given up. False: as of finish().
    bool give_back(const TakenRequest& request);

    // The trainer does not want it any more; finish() or give_back() it.
    [[nodiscard]] bool withdrawn(const TakenRequest& request) const;

    // As RequestBoard::interrupt().
    void interrupt();

  private:
    struct ROLLRING_LOCAL Impl;
    explicit RequestWorker(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace rollring
