#pragma once
// Every structure in a ring's shared memory, and nothing else; geometry.hpp has their offsets.
// Little endian. Each page has one kind of writer, so that a process maps only those pages writable
// that it writes:
//
//   header page    creator, before phase becomes ready; then read-only
//   schema page    creator, likewise
//   policy page    the weight channel's publisher (the version stamped on rollouts); a remover of
//                  the ring
//   bell pages     every process; a wrong word costs a spurious or a late wake-up (<= 100 ms)
//   reader pages   the consumer: control, the stash's account, the batches that others may read,
//                  one ReaderEntry a lane, the journal
//   owner pages    one page a lane: the producer of that lane
//   lanes          per lane the released-bit map (consumer), then the data (producer)
//   spill          an additional lane of its own capacity, also written by the consumer: records
//                  that were evacuated from the others. Behind its memory is a hole, over which the
//                  holder of the seat maps the overflow file (OverflowPath), if the ring has one
//   board          the consumer: the stash's open groups, one GroupRow each; their keys, hashed,
//                  for producers; the tombstones of finished groups
//   share seats    each Reader: its seat
//
// Lanes are reserved when taken, the spill and the board when a stash opens, the share seats when a
// reader comes or a batch has tickets. Extras have objects of their own beside the ring
// (companion.hpp).
//
// A *position* is a byte count that only grows. position mod lane_bytes is the offset in the data.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rollring/trajectory.hpp"
#include "words.hpp"

namespace rollring {

inline constexpr std::uint64_t line_bytes = 64;  // part of the ABI, for every CPU
inline constexpr std::uint64_t page_bytes = 4096;

inline constexpr std::uint64_t segment_magic = 0x31474e4952'4c4c52;  // "RLLRING1"
inline constexpr std::uint32_t abi_version = 13;
inline constexpr std::uint32_t lanes_max = 4096;
inline constexpr std::uint64_t lane_bytes_max = std::uint64_t{1}
                                                << 37;  // an offset in lines fits 32 bits
inline constexpr std::uint32_t columns_max = 32;
inline constexpr std::uint32_t group_rows_max = 1 << 24;
inline constexpr std::uint32_t requests_max = 1 << 16;
inline constexpr std::uint32_t share_seats = 256;
inline constexpr std::uint32_t shares_a_seat = 8;

enum class Phase : std::uint32_t { forming = 0, ready = 1 };

// At 0x000 of the segment. Everything but `phase` is fixed before `phase` becomes ready.
struct SegmentHeader {
    std::uint64_t magic;
    std::uint32_t abi;
    std::uint32_t header_bytes;  // sizeof(SegmentHeader): a reader refuses a foreign build
    std::uint64_t segment_bytes;
    std::uint64_t lane_bytes;
    std::uint32_t lane_count;
    std::uint32_t journal_records;
    std::uint64_t soft_bytes;  // soft wrap point; lane_bytes switches it off
    std::uint64_t ring_id;     // random; the run id of records, different in a re-created ring
    std::int64_t created_ns;   // CLOCK_REALTIME
    std::uint64_t schema_id;
    std::uint32_t group_rows;      // of the board
    std::uint32_t requests;        // a hint: entries of the object of extras/requests; 0: none
    std::uint64_t spill_bytes;     // of the spill in memory; 0: none
    std::uint64_t overflow_bytes;  // of the spill in the overflow file behind that; 0: none
    std::uint64_t request_bytes;   // likewise: of each entry's body
    std::uint64_t check;           // xxh3 of all the above
    std::uint64_t owner_mark;      // owner_mark_of(ring_id): the ring goes with its owner; else 0
    std::uint64_t purpose_mark;    // purpose_mark_of(ring_id, purpose); 0: Purpose::records
    std::atomic<std::uint32_t> phase;
    std::uint8_t reserved2[60];
};
static_assert(sizeof(SegmentHeader) == 192 && offsetof(SegmentHeader, phase) == 128);
static_assert(std::has_unique_object_representations_v<SegmentHeader>);

// The path of the overflow file: in the header page behind the header, written before it.
struct OverflowPath {
    char path[1016];      // absolute, NUL-padded
    std::uint64_t check;  // xxh3 of the path, with the ring's id as its seed
};
static_assert(sizeof(OverflowPath) == 1024);
inline constexpr std::uint64_t overflow_path_offset = 1024;
static_assert(overflow_path_offset >= sizeof(SegmentHeader) &&
              overflow_path_offset + sizeof(OverflowPath) <= page_bytes);

// The ring's ledger (extras/ledger): in the header page behind that.
struct LedgerPlace {
    char directory[1000];   // absolute, NUL-padded; empty: none
    std::uint64_t bytes;    // of the directory, at most
    std::uint32_t durable;  // a Durable
    std::uint32_t reserved;
    std::uint64_t check;  // xxh3 of all the above, with the ring's id as its seed
};
static_assert(sizeof(LedgerPlace) == 1024);
static_assert(std::has_unique_object_representations_v<LedgerPlace>);
inline constexpr std::uint64_t ledger_place_offset = 2048;
static_assert(ledger_place_offset >= overflow_path_offset + sizeof(OverflowPath) &&
              ledger_place_offset + sizeof(LedgerPlace) <= page_bytes);

// One column of the ring's schema, in the schema page.
struct SchemaColumn {
    char name[40];  // NUL-terminated
    std::uint8_t dtype_code;
    std::uint8_t dtype_bits;
    std::uint8_t per;         // a Per
    std::uint8_t required;    // 0 or 1
    std::uint8_t accepts;     // an Accepts
    std::uint8_t inner_dims;  // the number of set `dims`; a set dim of 0 means: any
    std::uint8_t reserved[2];
    std::uint32_t dims[4];
};
static_assert(sizeof(SchemaColumn) == 64);
static_assert(std::has_unique_object_representations_v<SchemaColumn>);

struct SchemaPage {
    std::uint32_t column_count;
    std::uint8_t reserved[60];
    SchemaColumn columns[columns_max];
};
static_assert(sizeof(SchemaPage) <= page_bytes);

// Written by the weight channel's publisher; a producer stamps it on records that name no version.
struct PolicyPage {
    std::atomic<std::int64_t> version;         // -1: none committed yet
    std::atomic<std::uint64_t> channel_token;  // of the weight channel; 0: none so far
    std::atomic<std::int64_t> committed_by;    // created_ns of its publisher; stored first
    // 1: the ring's name is gone. Here, because producers read this line with each record.
    std::atomic<std::uint32_t> removed;
    std::uint8_t reserved[36];
};
static_assert(sizeof(PolicyPage) == line_bytes);

// A shared doorbell. The waiter sets `waiting`, checks once more and sleeps on `sequence`.
struct Bell {
    std::atomic<std::uint32_t> sequence;
    std::atomic<std::uint32_t> waiting;
    // Consumer's bell only: grows when a producer takes a lane, closes, or waits for a free lane.
    std::atomic<std::uint32_t> lane_changes;
    std::atomic<std::uint32_t> openers;  // consumer's bell only: 1 while producers wait to open
    std::uint8_t reserved[48];
};
static_assert(sizeof(Bell) == line_bytes);
static_assert(std::has_unique_object_representations_v<Bell>);

// At the start of the reader pages: the seat, the journal and the bounds of admission.
//
// A dead consumer's words stay. Its successor replays the journal, and skips an entry that names no
// committed part of a lane; the bounds stay in force, so that producers open no group that no
// trainer could complete. Counts may be a moment old: a group counts as announced by its lane until
// it counts here. An overwritten bound delays producers, or lets them open too many groups, until
// the stash stores it again: every 10 ms while it looks for batches. `last_acked_step` is written
// from a private copy. With an overwritten `turns` or `busy_lanes` lanes turn back elsewhere, and a
// producer waits some milliseconds more, or not at all.
struct ReaderControl {
    std::atomic<std::uint32_t> epoch;  // grows with each consumer that takes the seat
    std::atomic<std::uint32_t> pid;
    std::atomic<std::int64_t> last_acked_step;
    // Read by producers that are ahead of it. 0: a consumer of rollring 0.1, which shows neither.
    std::atomic<std::uint64_t> turns;       // of lanes that delivered anything, so far
    std::atomic<std::uint32_t> busy_lanes;  // that took turns lately
    std::uint8_t reserved0[36];
    // The journal: `journal_count` > 0 means that these entries are acknowledged.
    std::atomic<std::uint64_t> journal_count;
    std::atomic<std::int64_t> journal_step;
    // Not 0: the entry moves a record into the spill, whose tail becomes this.
    std::atomic<std::uint64_t> journal_spill_tail;
    // Not 0: the entry ends groups, and `tombstones` becomes this.
    std::atomic<std::uint64_t> journal_tombstones;
    std::uint8_t reserved1[32];
    // Admission of new groups, read by producers. max_open_groups 0: they need not ask, because
    // the consumer forms no groups.
    std::atomic<std::uint64_t> max_open_groups;
    std::atomic<std::uint64_t> max_open_bytes;
    std::atomic<std::uint64_t> open_groups;
    std::atomic<std::uint64_t> held_bytes;
    std::atomic<std::uint64_t> tombstones;  // of all groups so far; the board has the last ones
    std::atomic<std::uint64_t> copied_bytes;
    std::atomic<std::uint64_t> evacuated_records;
    std::uint8_t reserved2[8];
    // Admission by bytes (docs/progress.md). A group may be opened while its claim, the claims of
    // producers that the stash has not read yet, and `owed_bytes` fit into `room_bytes`.
    std::atomic<std::uint64_t> room_bytes;    // 0: bytes are not bounded
    std::atomic<std::uint64_t> owed_bytes;    // to open groups, and to records that must be moved
    std::atomic<std::uint64_t> room_most;     // the most that one group alone could ever have
    std::atomic<std::uint32_t> record_lines;  // the longest recent record, in lines
    std::atomic<std::uint32_t> group_size;    // of a record that names none
    std::atomic<std::uint32_t> group_extra;   // StashOptions::extra
    std::uint8_t reserved3[12];
    // From here on the spill lies in the overflow file: below the end of its memory if /dev/shm was
    // full. Stored before any record lies there, and permanent. 0: at the end of its memory.
    std::atomic<std::uint64_t> overflow_begin;
    std::atomic<std::uint64_t> spill_reserved_bytes;  // from the spill's start on
};
static_assert(sizeof(ReaderControl) == 256);
static_assert(std::has_unique_object_representations_v<ReaderControl>);

// Behind the control: the stash's account (StashAccount, word by word) and, at the end, its latest
// batch. `sequence` is odd while the page is being written.
struct StashPage {
    std::atomic<std::uint64_t> sequence;
    std::atomic<std::uint64_t> words[63];
};
static_assert(sizeof(StashPage) == 512);

// Behind the account: the leased batches that other processes may read. A word is the number of a
// batch, with share_ending while its ack waits for its readers; 0: none.
inline constexpr std::uint64_t share_ending = std::uint64_t{1} << 63;
inline constexpr std::uint32_t shared_batches = 63;
struct SharePage {
    std::atomic<std::uint64_t> numbers;  // given so far: no two batches have the same
    std::atomic<std::uint64_t> batches[shared_batches];
};
static_assert(sizeof(SharePage) == 512);

// The entry of a record is its reference.
using JournalEntry = RecordRef;
static_assert(std::is_trivially_copyable_v<JournalEntry> && offsetof(JournalEntry, position) == 0 &&
              offsetof(JournalEntry, lane) == 8 && offsetof(JournalEntry, lines) == 12);
static_assert(sizeof(JournalEntry) == 16);

enum class Quarantine : std::uint32_t {
    none = 0,
    bad_tail,      // the tail moved back, or further than the lane holds
    bad_frame,     // no magic, wrong position, or a length that leaves the lane
    bad_sequence,  // the frame is intact, but names another producer
};

// The consumer's words about one lane.
//
// An old `head` or `delivered` only shows a producer less room, or more backlog, than there is. A
// dead consumer's words stay: its successor delivers the records from `cursor` on that have no
// released-bit, and quarantines a lane whose words contradict each other. The consumer reads its
// positions once, when it opens the lane, and stores them again once a second, in case others have
// overwritten them. A producer that finds an impossible `head` stops, and no producer takes an idle
// lane whose words are not sound.
struct ReaderEntry {
    // read by the producer
    std::atomic<std::uint64_t> head;
    std::atomic<std::uint32_t> retired_epoch;  // finished; LaneOwner::epoch is one more if taken,
    std::atomic<std::uint32_t> begun_epoch;    // and so is this once the consumer has seen it
    std::atomic<std::uint32_t> quarantine;     // a Quarantine
    std::atomic<std::uint32_t> restart_epoch;  // its records and older ones are below restart_at,
    std::atomic<std::uint64_t> restart_at;     // where the next producer starts
    std::uint8_t reserved0[32];
    // read by the consumer's successor
    std::atomic<std::uint64_t> cursor;     // everything below it is released; head <= cursor
    std::atomic<std::uint64_t> delivered;  // everything below it was delivered at least once
    std::uint8_t reserved1[48];
    // counters
    std::atomic<std::uint64_t> records;
    std::atomic<std::uint64_t> released;
    std::atomic<std::uint64_t> redelivered;
    std::atomic<std::uint64_t> lost;        // gaps in the sequence
    std::atomic<std::uint64_t> duplicates;  // sequence seen before
    std::atomic<std::uint64_t> torn;        // records refused by validation or checksum
    std::atomic<std::uint64_t> producers_died;
    std::atomic<std::uint64_t> producers_closed;
    std::atomic<std::uint64_t> dropped_bytes;   // given up behind a damaged frame
    std::atomic<std::uint64_t> groups_arrived;  // LaneOwner::groups_opened, as far as it was read
    std::atomic<std::uint32_t> lines_arrived;   // LaneOwner::lines_claimed, likewise
    // With a ledger: records of this epoch that the ledger has, or that left the ring. A store of
    // another epoch comes behind a store of 0 records.
    std::atomic<std::uint32_t> durable_epoch;
    std::atomic<std::uint64_t> durable_records;
    std::uint8_t reserved2[32];
};
static_assert(sizeof(ReaderEntry) == 256);
static_assert(std::has_unique_object_representations_v<ReaderEntry>);

enum class OwnerState : std::uint32_t { none = 0, active = 1, closed = 2 };

// The words of a lane's producer: one page a lane.
//
// A dead producer's words stay until the next one takes the lane. They decide nothing more, except
// `tail` (the consumer first reads the records below it), `kept_for`, and the counts of a bound on
// records. Counters may lack the last records before a death, and a reader may see a torn `name`.
// Overwritten words do no harm elsewhere: the consumer checks `tail` and each frame below it, and
// quarantines the lane if one is impossible; announcements and claims beyond every bound count as
// none (lib/credits/group_places.hpp).
struct LaneOwner {
    std::atomic<std::uint64_t> tail;
    std::atomic<std::int64_t> shown_ns;  // when its latest record was committed; 0: none yet
    std::uint8_t reserved0[48];
    // identity, written under the lane's life lock before `epoch` grows
    std::atomic<std::uint32_t> epoch;
    std::atomic<std::uint32_t> state;  // an OwnerState of this epoch
    std::atomic<std::uint32_t> pid;
    std::uint8_t reserved1[4];
    SharedText<40> name;  // UTF-8, NUL-padded
    // With a bound on the ring's records: the tail that records_total covers. Stored after both:
    // a producer that dies in between is counted by its claims.
    std::atomic<std::uint64_t> counted_tail;
    // counters; records, tokens and bytes are stored after the tail that covers them
    std::atomic<std::uint64_t> records;  // of this epoch
    std::atomic<std::uint64_t> tokens;   // this and the following: of all epochs
    std::atomic<std::uint64_t> bytes;
    std::atomic<std::uint64_t> records_total;
    std::atomic<std::uint64_t> waits;
    std::atomic<std::uint64_t> laps_soft;
    std::atomic<std::uint64_t> laps_full;
    std::atomic<std::uint64_t> jumps;
    std::atomic<std::uint64_t> groups_opened;  // groups that this lane was the first to announce
    // The demand for which it waits, or that a passed deadline refused; 0 again with its next call.
    std::atomic<std::uint64_t> wants_room_bytes;  // for one record, its frame included
    // For a group that it may not open yet. Even: it may send to another one meanwhile.
    std::atomic<std::uint64_t> wants_place_bytes;
    // Claimed for groups that it opened, modulo 2^32. Claims that have not arrived stay below
    // that, so the difference is exact.
    std::atomic<std::uint32_t> lines_claimed;
    std::atomic<std::uint32_t> record_lines;  // its declared longest record; 0: none declared
    // With a bound on the ring's records: records of all epochs, sent or about to be; and those of
    // records_total whose release will never be counted.
    std::atomic<std::uint64_t> records_claimed;
    std::atomic<std::uint64_t> records_missed;
    // Not 0, and kept_check agrees: only a producer that gives the words of this hash gets the lane
    // (ProducerOptions::keep_for). An overwritten hash keeps the lane from no producer.
    std::atomic<std::uint64_t> kept_for;
    std::atomic<std::uint64_t> kept_check;
};
static_assert(sizeof(LaneOwner) == 256);
static_assert(std::has_unique_object_representations_v<LaneOwner>);

enum class FrameKind : std::uint16_t { record = 1, skip = 2 };
inline constexpr std::uint32_t frame_magic = 0x4d524652;  // "RFRM"

// The first line of everything in a lane's data. A frame is contiguous and a multiple of 64 bytes.
struct Frame {
    std::uint32_t magic;
    std::uint16_t kind;  // a FrameKind
    std::uint16_t reserved0;
    std::uint64_t bytes;     // of the whole frame, this line included
    std::uint64_t position;  // of this line: differs in a stale lap
    std::uint64_t sequence;  // per lane and epoch, from 0
    std::uint32_t epoch;
    std::uint32_t lane;
    std::uint64_t payload_bytes;  // the committed bytes, <= bytes - 64
    std::int64_t committed_ns;    // CLOCK_MONOTONIC
    // LaneOwner's groups_opened and lines_claimed, modulo 2^32, for the groups of which a record
    // was sent, this one included.
    std::uint32_t groups_opened;
    std::uint32_t lines_claimed;
};
static_assert(sizeof(Frame) == line_bytes);
static_assert(std::has_unique_object_representations_v<Frame>);

enum class RowState : std::uint32_t { free = 0, open = 1, ready = 2, leased = 3 };

// One group of the stash, for people and programs outside. `sequence` is odd while the row is being
// written.
struct GroupRow {
    std::atomic<std::uint32_t> sequence;
    std::atomic<std::uint32_t> state;  // a RowState
    std::atomic<std::uint64_t> key_low;
    std::atomic<std::uint64_t> key_high;
    std::atomic<std::int64_t> opened_ns;  // CLOCK_MONOTONIC, as is the next
    std::atomic<std::int64_t> changed_ns;
    // Bit r: repetition r, below 64 and the size, is not final.
    std::atomic<std::uint64_t> missing;
    std::atomic<std::uint64_t> lanes;  // bit l: lane l mod 64 has sent to it
    std::atomic<std::uint64_t> tokens;
    std::atomic<std::uint32_t> size;
    std::atomic<std::uint32_t> complete;  // members
    std::atomic<std::uint32_t> failed;
    std::atomic<std::uint32_t> records;
    SharedText<40> instance;  // first bytes of the instance_id, NUL-padded
    std::uint8_t reserved[8];
};
static_assert(sizeof(GroupRow) == 128);
static_assert(std::has_unique_object_representations_v<GroupRow>);

// A finished group: a late member must not open it again, in the next process either.
struct Tombstone {
    std::atomic<std::uint64_t> key_low;
    std::atomic<std::uint64_t> key_high;
    std::atomic<std::int64_t> over_ns;  // CLOCK_MONOTONIC
    std::atomic<std::uint64_t> number;  // from 1: another one once a later group has the entry
};
static_assert(sizeof(Tombstone) == 32);

// The words of a reader of shares, under its life byte. It reads the batches whose numbers are in
// `holds`.
struct ShareSeat {
    std::atomic<std::uint32_t> pid;  // in its own PID namespace: for people
    std::uint8_t reserved[4];
    SharedText<40> name;  // UTF-8, NUL-padded
    std::uint8_t reserved1[16];
    std::atomic<std::uint64_t> holds[shares_a_seat];  // 0: nothing
};
static_assert(sizeof(ShareSeat) == 128);
static_assert(std::has_unique_object_representations_v<ShareSeat>);

}  // namespace rollring
