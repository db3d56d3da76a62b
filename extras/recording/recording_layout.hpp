#pragma once
// The bytes of a recording's files. Little endian, each part at a multiple of 64.
//
// A file is a FileHeader, its columns as text, and entries: an EntryHeader and its payload, padded
// with zeros. The records of a batch come before the entry of the batch, so a batch that is there
// is whole.

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace rollring::recording {

inline constexpr std::uint64_t line = 64;
inline constexpr std::array<char, 8> file_magic = {'R', 'R', 'R', 'O', 'L', 'L', 'S', '\n'};
inline constexpr std::uint32_t file_version = 1;
inline constexpr std::uint32_t entry_magic = 0x59525452;  // "RTRY"

// A kind of files with these headers and entries.
struct FileType {
    std::array<char, 8> magic;
    std::uint32_t version;
    const char* what;  // for people
};
inline constexpr FileType recording_type{file_magic, file_version, "a recording"};

// Of an acknowledgement; other entries have none.
inline constexpr std::int64_t no_step = INT64_MIN;

struct FileHeader {
    std::array<char, 8> magic;
    std::uint32_t version;
    std::uint32_t columns_bytes;  // of the text behind this header
    std::uint64_t file_number;    // as in its name
    std::uint64_t file_id;        // random; seeds the checksums, so old bytes of a disk are none
    std::uint64_t schema_id;
    std::uint64_t first_batch;  // the number of the first batch in this file, if there is one
    std::int64_t created_ns;
    std::uint64_t checksum;  // xxh3 of the fields above, xor that of the columns
};
static_assert(sizeof(FileHeader) == line);
static_assert(std::has_unique_object_representations_v<FileHeader>);

enum class Kind : std::uint32_t { record = 1, batch = 2, acked = 3 };

struct EntryHeader {
    std::uint32_t magic = entry_magic;
    Kind kind{};
    std::uint64_t payload_bytes = 0;
    std::uint64_t number = 0;  // of the batch; of a record, of the batch that it belongs to
    std::int64_t time_ns = 0;  // CLOCK_REALTIME
    std::int64_t step = no_step;
    std::uint64_t payload_checksum = 0;  // xxh3
    std::uint64_t reserved = 0;
    std::uint64_t checksum = 0;  // xxh3 of the fields above
};
static_assert(sizeof(EntryHeader) == line);
static_assert(std::has_unique_object_representations_v<EntryHeader>);

// The payload of a batch: this, then its groups, then its sequences.
struct BatchHead {
    std::uint64_t tokens;
    std::uint32_t groups;
    std::uint32_t sequences;
};
static_assert(sizeof(BatchHead) == 16);

struct RecordedGroup {
    std::uint64_t key_low;
    std::uint64_t key_high;
    std::uint32_t size;
    std::uint32_t members;
    std::uint32_t bad_rewards;
    std::uint32_t unrewarded;
    std::uint32_t sequences;
    std::uint32_t reserved;
};
static_assert(sizeof(RecordedGroup) == 40);

struct RecordedSequence {
    std::uint64_t offset;  // of its entry in the file
    std::uint64_t reward;  // bits of a double: NaNs keep theirs
    std::uint64_t advantage;
    std::uint32_t member;
    std::uint32_t withheld;
};
static_assert(sizeof(RecordedSequence) == 32);

// The largest payload that a reader believes.
inline constexpr std::uint64_t payload_bytes_max = std::uint64_t{1} << 40;

constexpr std::uint64_t padded(std::uint64_t bytes) {
    return (bytes + line - 1) / line * line;
}

}  // namespace rollring::recording
