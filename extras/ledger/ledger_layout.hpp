#pragma once
// The bytes of a ledger's segments: the headers and entries of recording_layout.hpp, with these
// kinds. A segment begins with an entry `ring`. A commit begins at a multiple of 4096 bytes, and
// zeros fill the rest of the commit before it.

#include <array>
#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "recording_layout.hpp"

namespace rollring::ledger {

using recording::EntryHeader;
using recording::FileHeader;
using recording::line;
using recording::padded;

inline constexpr recording::FileType segment_type{
    {'R', 'R', 'L', 'E', 'D', 'G', 'R', '\n'}, 1, "a ledger"};
inline constexpr std::string_view segment_ending = ".ledger";
inline constexpr std::uint64_t block = 4096;
constexpr std::uint64_t in_blocks(std::uint64_t bytes) {
    return (bytes + block - 1) / block * block;
}

// `number` of an entry is that of its record, or of its batch.
enum class Kind : std::uint32_t {
    record = 16,  // a RecordOrigin, and the record as it lies in a ring
    ring = 17,    // a RingHead, the ring's name, and its sizes
    acked = 18,   // numbers (u64) of records, in the order of their batch; its step
    gone = 19,    // numbers of records that are never given again: dropped, or in a checkpoint
    again = 20,   // numbers of records of which an acknowledgement failed
};

constexpr recording::Kind stored(Kind kind) {
    return std::bit_cast<recording::Kind>(kind);
}
constexpr Kind kind_of(const EntryHeader& entry) {
    return std::bit_cast<Kind>(entry.kind);
}

// In front of a record: its identity, in the ring that it came from first.
struct RecordOrigin {
    std::uint64_t ring_id;
    std::uint32_t lane;
    std::uint32_t epoch;
    std::uint64_t sequence;
    std::uint64_t key_low;
    std::uint64_t key_high;
    std::uint64_t tokens;
    std::uint64_t reserved[2];
};
static_assert(sizeof(RecordOrigin) == line);
static_assert(std::has_unique_object_representations_v<RecordOrigin>);

struct RingHead {
    std::uint64_t ring_id;
    std::uint64_t name_bytes;  // of the name behind it; the sizes follow
};
static_assert(sizeof(RingHead) == 16);

// The entries of a closed segment, without its records' bytes: a file `<number>.index`. It only
// saves the reading of the segment: one that is damaged or of another version is as good as none.
struct IndexHead {
    std::array<char, 8> magic;
    std::uint32_t version;
    std::uint32_t reserved;
    std::uint64_t file_id;  // of the segment
    std::uint64_t end;      // of the segment's last entry
    std::uint64_t entries;
    std::uint64_t bytes;  // behind this head
    std::uint64_t reserved2;
    std::uint64_t checksum;  // xxh3 of the bytes behind it, seeded with that of the fields above
};
static_assert(sizeof(IndexHead) == line);
static_assert(std::has_unique_object_representations_v<IndexHead>);

// An entry of the segment, in its order. Behind it is a part of the entry's payload, padded to a
// multiple of 8: of a record its RecordOrigin, of others all.
struct IndexedEntry {
    std::uint64_t offset;
    std::uint64_t number;
    std::int64_t step;
    std::uint64_t payload_bytes;
    std::uint32_t kind;
    std::uint32_t part_bytes;
};
static_assert(sizeof(IndexedEntry) == 40);
static_assert(std::has_unique_object_representations_v<IndexedEntry>);
inline constexpr std::array<char, 8> index_magic = {'R', 'R', 'L', 'I', 'N', 'D', 'X', '\n'};
inline constexpr std::uint32_t index_version = 1;
inline constexpr std::string_view index_ending = ".index";

// The records that a restore sends into a ring, in their order: a file `<ring id>.restored`.
struct RestoredHead {
    std::uint64_t magic;
    std::uint64_t ring_id;
    std::uint32_t lane;   // of the producer that sends them
    std::uint32_t epoch;  // likewise: the record of sequence n is numbers[n]
    std::uint64_t count;
    std::uint64_t checksum;  // xxh3 of the numbers behind it, seeded with the fields above
};
static_assert(sizeof(RestoredHead) == 40);
inline constexpr std::uint64_t restored_magic = 0x314f5453'45524c52;  // "RLRESTO1"
inline constexpr std::string_view restored_ending = ".restored";
inline constexpr std::string_view failed_name = "FAILED";

}  // namespace rollring::ledger
