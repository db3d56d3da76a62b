#pragma once
// A rank's share of a batch, read in place in another process than the one that leased it.
//
//   extern const std::string ticket;   // batch.ticket({.rank = 1, .world = 2}) of the trainer,
//                                      // which has the stash; sent by any means of the job
//   auto reader = rollring::Reader::attach("ring");   // rank 1, once
//   auto share = reader->open(ticket);
//   if (!share) ...
//   train(*share);                     // the same views, over the same memory, as of a batch
//   if (!share->close()) ...           // stale_ticket: the memory was given back meanwhile
//
// While a share is open, its batch's ack() waits for it, up to its deadline; not for one whose
// process has died. The batch can still be given back while a share is open: if the trainer
// returns it untrained, or if a new trainer takes over. The memory stays mapped then, but may hold
// other bytes. check() reports this: call it once more after the last read, and discard all data
// read since the last good check.
//
// One thread at a time for a Reader and its shares. In a forked child they are inert, and return
// Errc::forked.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "rollring/batch.hpp"
#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/version.hpp"

namespace rollring {

struct ReaderOptions {
    // Shown to people, up to 39 bytes; empty: the program's name.
    std::string_view name = {};
    // For the ring to appear.
    std::chrono::nanoseconds attach_timeout = std::chrono::seconds(10);
};

class ROLLRING_API Share : public Sequences {
  public:
    Share(Share&& other) noexcept;
    Share& operator=(Share&& other) noexcept;
    ~Share();  // as close()

    [[nodiscard]] std::uint32_t rank() const { return rank_; }
    [[nodiscard]] std::uint32_t world() const { return world_; }
    // For each sequence, its index among those of the batch.
    [[nodiscard]] std::span<const std::uint32_t> indices() const { return indices_; }

    // Whether all data read from the share until now are the records of the ticket.
    // Errc::stale_ticket, Errc::not_leased (it was closed), Errc::forked.
    [[nodiscard]] Result<void> check() const;
    // Gives the share up, after a last check. It is empty then.
    Result<void> close();

  private:
    friend class Reader;
    struct ROLLRING_LOCAL Hold;
    Share();
    std::shared_ptr<Hold> hold_;
    std::vector<TrajectoryView> views_;
    std::vector<std::uint32_t> indices_;
    std::uint32_t rank_ = 0;
    std::uint32_t world_ = 0;
};

// Up to 256 for a ring. It maps the ring read-only, except for its own seat.
class ROLLRING_API Reader {
  public:
    // Errc::busy: all seats are taken.
    static Result<Reader> attach(std::string_view ring, const ReaderOptions& options = {});
    Reader(Reader&&) noexcept;
    Reader& operator=(Reader&&) noexcept;
    ~Reader();  // its shares stay open

    // Up to eight at a time. Even a forged ticket shows only records of this ring.
    // Errc::stale_ticket: its batch was acknowledged or given back, or is another trainer's.
    // Errc::invalid_argument: it is not a ticket. Errc::bad_record: its records are not there.
    // Errc::busy: eight are open.
    Result<Share> open(std::string_view ticket);

    [[nodiscard]] const Schema& schema() const;

  private:
    struct ROLLRING_LOCAL Impl;
    friend class Share;
    explicit Reader(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;
};

}  // namespace rollring
