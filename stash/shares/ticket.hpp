#pragma once
// A ticket names the records of a rank's share of a batch, with the batch's facts about them. The
// trainer sends it by any means, so the process that opens one treats it as hostile.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layout.hpp"
#include "rollring/error.hpp"

namespace rollring {

struct TicketHead {
    std::uint64_t magic;
    std::uint64_t ring_id;
    std::uint64_t number;  // of the batch: SharePage
    std::uint32_t row;     // the index of the number there
    std::uint32_t epoch;   // of the consumer: the numbers are valid under this one only
    std::uint32_t rank;
    std::uint32_t world;
    std::uint32_t groups;
    std::uint32_t records;
    std::uint64_t reserved;
    std::uint64_t check;  // xxh3 of all but this
};
static_assert(sizeof(TicketHead) == 64);

// A group of which the share has records.
struct TicketGroup {
    std::uint64_t key_low;
    std::uint64_t key_high;
    std::uint32_t size;
    std::uint32_t members;  // of the batch, as are the next two
    std::uint32_t bad_rewards;
    std::uint32_t unrewarded;
    std::uint32_t records;  // of the share
    std::uint32_t reserved;
};
static_assert(sizeof(TicketGroup) == 40);

// The position and the identity of a record, in the batch's order.
struct TicketRecord {
    std::uint64_t position;
    std::uint64_t sequence;
    std::uint32_t lane;
    std::uint32_t lines;
    std::uint32_t producer_lane;
    std::uint32_t producer_epoch;
    std::uint32_t index;   // among the batch's sequences
    std::uint32_t member;  // of its group
    std::uint32_t n_tokens;
    std::uint32_t withheld;  // 0 or 1
    double reward;
    double advantage;
};
static_assert(sizeof(TicketRecord) == 64);

struct Ticket {
    TicketHead head{};
    std::vector<TicketGroup> groups;
    std::vector<TicketRecord> records;

    // Fills in the counts, the magic and the check.
    [[nodiscard]] std::string write();
    // Errc::invalid_argument: these bytes are not a ticket. The process that opens it has to check
    // its statements about memory.
    static Result<Ticket> read(std::string_view bytes);
};

}  // namespace rollring
