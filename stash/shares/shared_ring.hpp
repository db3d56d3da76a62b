#pragma once
// A ring as a reader of shares has it: all of it mapped read-only, and a seat of its own.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "liveness.hpp"
#include "overflow.hpp"
#include "ring_map.hpp"
#include "rollring/error.hpp"
#include "ticket.hpp"

namespace rollring {

class SharedRing {
  public:
    // Waits for the ring, and takes a free seat.
    static Result<SharedRing> attach(std::string_view ring, std::string_view name,
                                     Deadline deadline);

    [[nodiscard]] const RingMap& map() const { return map_; }
    [[nodiscard]] const Mapping& all() const { return all_; }
    [[nodiscard]] bool inherited() const { return generation_ != fork_generation(); }

    // Notes in a free word of the seat that this batch is read; the word's index, or empty if all
    // are in use.
    std::optional<std::uint32_t> hold(std::uint64_t number);
    void let_go(std::uint32_t place);
    // Whether the batch of a ticket was held and shared from that hold() until now: then no process
    // has overwritten its records. `begin`: fails as well while its ack waits for earlier readers.
    [[nodiscard]] Result<void> check(const TicketHead& ticket, std::uint32_t place,
                                     bool begin = false) const;
    // The record's payload in place, after every statement of the ticket about it was checked.
    // Errc::bad_record.
    Result<std::span<const std::byte>> find(const TicketRecord& record);

  private:
    SharedRing(RingMap map, LifeLock life, Mapping seats, Mapping all, std::uint32_t seat);
    [[nodiscard]] ShareSeat& own() const;
    // Maps the overflow file where the stash has it now.
    Result<void> follow_overflow();
    // Reads without allocating a page, because a ticket may name a hole.
    [[nodiscard]] bool frame_at(std::uint32_t lane, std::uint64_t position, std::uint64_t end,
                                Frame& frame) const;

    RingMap map_;
    LifeLock life_;
    Mapping seats_;
    Mapping all_;
    std::uint32_t seat_;
    std::optional<Overflow> overflow_;
    std::array<bool, shares_a_seat> used_{};
    std::uint64_t generation_ = fork_generation();
};

}  // namespace rollring
