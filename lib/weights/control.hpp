#pragma once
// The control memory of one publisher: a memfd that subscribers get when they attach. Every page
// has one writer, the bells excepted; a process maps only those pages writable that it writes.
//
//   header page       publisher, before it is passed on; then read-only
//   publisher page    publisher: its versions, and the part in each slot
//   admission pages   publisher: one line a subscriber
//   refusals page     publisher: why engines without a seat take no version
//   ranks page        of rank 0: all ranks, for the commit that they decide together
//   bell page         every process; a wrong word costs a spurious or a late wake-up (<= 100 ms)
//   subscriber pages  one page each: its acknowledgements
//
// A *part number* counts parts filled since the publisher started. A *publication* is one passage
// of a version through the slots, counted from 1: a version that is sent again is another
// publication. Life is proven by byte locks on this memfd (lib/shm/liveness.hpp).

#include <atomic>

#include "layout.hpp"
#include "manifest.hpp"
#include "rollring/weights.hpp"
#include "round_up.hpp"

namespace rollring::weights {

inline constexpr std::uint64_t control_magic = 0x314c544357'4c4c52;  // "RLLWCTL1"
inline constexpr std::uint32_t control_abi = 4;
inline constexpr std::uint32_t subscribers_limit = 256;
inline constexpr std::uint32_t ranks_limit = 256;
// A publisher makes new slots if it must set old ones aside: up to this many in all.
inline constexpr std::uint32_t slots_limit = 2 * slots_max;

struct ControlHeader {
    std::uint64_t magic;
    std::uint32_t abi;
    std::uint32_t header_bytes;
    std::uint64_t control_bytes;
    std::uint64_t manifest_bytes;
    std::uint64_t ring_id;
    std::int64_t created_ns;  // CLOCK_REALTIME
    std::uint32_t subscribers_max;
    std::uint32_t rank;
    std::uint32_t ranks;
    std::uint32_t pid;
    char name[32];
    std::uint8_t reserved[32];
};
static_assert(sizeof(ControlHeader) == 128);
static_assert(std::has_unique_object_representations_v<ControlHeader>);

enum class Outcome : std::uint32_t { open = 0, committed = 1, aborted = 2 };

// Publication p is in line p mod publications_kept. Its id is stored last, and 0 while it changes.
struct PublicationLine {
    std::atomic<std::uint64_t> id;
    std::atomic<std::int64_t> version;
    std::atomic<std::uint64_t> first_part_number;
    std::atomic<std::uint32_t> outcome;
    std::atomic<std::uint32_t> put;  // 1: all parts are on their way
    SharedText<416> why;             // if it was aborted
};
static_assert(sizeof(PublicationLine) == 448);
inline constexpr std::uint64_t publications_kept = 4;

// The part of number k is described in line k mod parts_kept.
struct PartLine {
    std::atomic<std::uint64_t> number;
    std::atomic<std::uint32_t> part;
    std::atomic<std::uint32_t> slot;
};
static_assert(sizeof(PartLine) == 16);
inline constexpr std::uint64_t parts_kept = std::uint64_t{2} * slots_limit;

struct PublisherPage {
    std::atomic<std::uint64_t> filled;  // parts below this number are complete in their slots
    std::atomic<std::uint32_t> closed;  // 1: it ended in good order
    std::uint32_t reserved0;
    std::atomic<std::uint64_t> asked;         // requests to roll back so far
    std::atomic<std::int64_t> asked_version;  // the version that the last one wants to be left
    std::uint8_t reserved2[32];
    std::atomic<std::int64_t> committed;     // version; -1: none
    std::atomic<std::uint64_t> publication;  // the last one begun; 0: none
    std::atomic<std::int64_t> ranks_id;  // created_ns of rank 0's control memory: stamps commits
    std::uint8_t reserved1[40];
    PublicationLine publications[publications_kept];
    PartLine parts[parts_kept];
    // Statistics.
    std::atomic<std::uint64_t> syncs;
    std::atomic<std::uint64_t> aborts;
    std::atomic<std::uint64_t> handles_passed;
    std::atomic<std::int64_t> times[5];  // SyncTimes of the last commit
    SharedText<512> why_not_direct;      // empty from a publisher that knows nothing of it, too
};
static_assert(sizeof(PublisherPage) <= page_bytes);

// The publisher's words for one subscriber.
struct AdmissionLine {
    std::atomic<std::uint64_t> epoch;  // of the seat's holder; 0: free
    std::atomic<std::uint64_t> reads;  // the latest publication that it must read; 0: none
    // The latest publication that was decided without it while it read; 0: none.
    std::atomic<std::uint64_t> too_late;
    std::uint8_t reserved[40];
};
static_assert(sizeof(AdmissionLine) == line_bytes);

// An engine that cannot take versions, and has no seat.
struct RefusalLine {
    SharedText<32> name;  // empty: no refusal
    std::atomic<std::uint32_t> pid;
    std::uint32_t reserved;
    SharedText<984> why;
};
static_assert(sizeof(RefusalLine) == 1024);
inline constexpr std::uint64_t refusals_kept = 4;
struct RefusalsPage {
    RefusalLine lines[refusals_kept];
};
static_assert(sizeof(RefusalsPage) <= page_bytes);

// Each rank writes its own line; the first process to decide writes `decision`.
inline constexpr std::int64_t outcomes = 4;
struct RanksPage {
    // version * outcomes + Outcome of the last version that was decided.
    std::atomic<std::int64_t> decision;
    // The last committed version whose decision another one has replaced; -1: none. A rank that
    // looks late finds its version here.
    std::atomic<std::int64_t> committed;
    std::uint8_t reserved[48];
    struct alignas(line_bytes) Rank {
        std::atomic<std::int64_t> staged;   // its vote: a version; -1: none. Counts while it lives
        std::atomic<std::uint32_t> joined;  // 1: it has attached
        std::atomic<std::int64_t> begun;    // its last version, if it has a shard; -1: none
    };
    Rank ranks[ranks_limit];
};
static_assert(sizeof(RanksPage) == line_bytes * (1 + ranks_limit));

struct SubscriberPage {
    std::atomic<std::uint64_t> epoch;      // set when the words below are valid for it
    std::atomic<std::uint64_t> read_done;  // parts below this number are read, by the device too
    std::atomic<std::uint64_t> publications_read;  // publications up to here are no longer read
    std::atomic<std::uint64_t> staged;             // the last publication that it has completely
    std::atomic<std::uint64_t> rejected;           // the last publication that it could not take
    std::atomic<std::int64_t> staged_version;
    std::atomic<std::int64_t> live_version;
    std::atomic<std::uint32_t> state;  // a SubscriberState
    std::atomic<std::uint32_t> closed;
    std::atomic<std::uint32_t> pid;
    std::atomic<std::uint32_t> attached;  // 1: all ranks that it needs have admitted it
    std::atomic<std::uint64_t> gpu[2];
    SharedText<32> name;
    SharedText<1024> problem;
    // Statistics of staging by difference: a DeltaReport.
    std::atomic<std::uint64_t> delta_version;  // one more than the version; 0: none
    std::atomic<std::uint64_t> delta_elements;
    std::atomic<std::uint64_t> delta_changed;
    std::atomic<std::uint64_t> delta_list_bytes;
    std::atomic<std::int64_t> delta_compare_ns;
    std::atomic<std::int64_t> delta_swap_ns;
    std::atomic<std::uint32_t> delta_way;  // a DeltaWay
    // Its answer to the request of this number; stored last.
    std::atomic<std::uint32_t> takes_requests;  // 1: it answers
    std::atomic<std::uint64_t> answered;
    std::atomic<std::uint32_t> answer;  // a RollbackOutcome
    std::uint32_t reserved2;
    SharedText<512> answer_why;
};
static_assert(sizeof(SubscriberPage) <= page_bytes);

// Offsets follow from subscribers_max and ranks.
struct ControlOffsets {
    std::uint32_t subscribers_max;
    std::uint32_t ranks;

    [[nodiscard]] constexpr std::uint64_t publisher() const { return page_bytes; }
    [[nodiscard]] constexpr std::uint64_t admission(std::uint32_t seat) const {
        return 2 * page_bytes + std::uint64_t{seat} * sizeof(AdmissionLine);
    }
    [[nodiscard]] constexpr std::uint64_t refusals() const {
        return 2 * page_bytes + round_up(subscribers_limit * sizeof(AdmissionLine), page_bytes);
    }
    [[nodiscard]] constexpr std::uint64_t ranks_page() const { return refusals() + page_bytes; }
    [[nodiscard]] constexpr std::uint64_t ranks_bytes() const {
        return round_up(sizeof(RanksPage), page_bytes);
    }
    [[nodiscard]] constexpr std::uint64_t bells() const { return ranks_page() + ranks_bytes(); }
    // For the publisher, the subscribers, and the other ranks.
    [[nodiscard]] constexpr std::uint64_t bells_bytes() const {
        return round_up((1 + std::uint64_t{subscribers_max} + ranks) * sizeof(Bell), page_bytes);
    }
    [[nodiscard]] static constexpr std::uint64_t publisher_bell() { return 0; }
    [[nodiscard]] static constexpr std::uint64_t subscriber_bell(std::uint32_t seat) {
        return (1 + std::uint64_t{seat}) * sizeof(Bell);
    }
    [[nodiscard]] constexpr std::uint64_t rank_bell(std::uint32_t rank) const {
        return (1 + std::uint64_t{subscribers_max} + rank) * sizeof(Bell);
    }
    [[nodiscard]] constexpr std::uint64_t subscriber(std::uint32_t seat) const {
        return bells() + bells_bytes() + std::uint64_t{seat} * page_bytes;
    }
    [[nodiscard]] constexpr std::uint64_t end() const { return subscriber(subscribers_max); }
};

}  // namespace rollring::weights
