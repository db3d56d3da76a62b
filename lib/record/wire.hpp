#pragma once
// A record's bytes: header, directory, columns. Little endian, every column at a multiple of 64.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "layout.hpp"
#include "rollring/schema.hpp"

namespace rollring {

inline constexpr std::uint32_t record_magic = 0x4a415254;  // "TRAJ"
inline constexpr std::uint16_t record_abi = 1;

enum RecordFlag : std::uint32_t {
    flag_reward_set = 1,
    flag_last_subsequence = 2,
    flag_source_set = 4,
    flag_repetition_set = 8,
    flag_user_is_text = 16,
};
inline constexpr std::uint32_t record_flags_known = 31;

struct RecordHeader {
    std::uint32_t magic;
    std::uint16_t abi;
    std::uint16_t header_bytes;
    std::uint64_t record_bytes;  // header, directory and columns
    std::uint64_t schema_id;
    std::uint64_t run_id;  // ring_id of the ring it was written for
    std::uint64_t key_low;
    std::uint64_t key_high;
    std::uint64_t visit;
    std::uint64_t checksum;  // xxh3 of everything behind this header; 0 if checksum_kind is none
    std::uint32_t repetition_id;
    std::uint32_t group_size;
    std::uint32_t attempt;
    std::uint32_t flags;
    std::int64_t source_id;
    std::uint32_t n_tokens;
    std::uint32_t n_prompt;
    std::int64_t policy_version_min;
    std::int64_t policy_version_max;
    std::uint64_t reward_bits;  // of an IEEE double
    std::int64_t created_ns;
    std::int64_t finished_ns;
    std::uint16_t subsequence_index;
    std::uint16_t column_count;
    std::uint16_t origin;
    std::uint8_t status;
    std::uint8_t checksum_kind;
    std::uint8_t reserved[48];
};
static_assert(sizeof(RecordHeader) == 192);
static_assert(std::has_unique_object_representations_v<RecordHeader>);

// Half a cache line: the directory of a plain record is two lines.
struct ColumnEntry {
    std::uint16_t column;
    std::uint8_t code_and_dims;  // DType code in the low half, dims in the high one
    std::uint8_t dtype_bits;
    std::uint32_t offset_lines;  // from the start of the record, in units of 64 bytes
    std::uint64_t bytes;
    std::uint32_t shape[4];

    [[nodiscard]] std::uint8_t dtype_code() const { return code_and_dims & 15; }
    [[nodiscard]] std::uint8_t dims() const { return code_and_dims >> 4; }
    [[nodiscard]] std::uint64_t offset() const { return offset_lines * line_bytes; }
};
static_assert(sizeof(ColumnEntry) == 32);
static_assert(std::ranges::all_of(known_dtypes, [](const KnownDType& known) {
    return known.dtype.code < 16 && known.dtype.bits % 8 == 0;
}));
static_assert(std::has_unique_object_representations_v<ColumnEntry>);

}  // namespace rollring
