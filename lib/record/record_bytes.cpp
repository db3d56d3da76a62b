#include "record_bytes.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "fits.hpp"
#include "round_up.hpp"
#include "wire.hpp"
#include "xxh3.hpp"

namespace rollring {
namespace {

// A reserved record lies in the lane, where others can overwrite it: its header and directory are
// copied and checked, and only the copy is used.
RecordHeader& header_of(std::span<std::byte> record) {
    return *reinterpret_cast<RecordHeader*>(record.data());
}

std::size_t column_count(std::span<const std::byte> record) {
    if (record.size() < sizeof(RecordHeader)) return 0;
    const std::size_t claimed = load_once<RecordHeader>(record.data()).column_count;
    const std::size_t room = (record.size() - sizeof(RecordHeader)) / sizeof(ColumnEntry);
    return std::min({claimed, room, std::size_t{columns_max}});
}

std::byte* entry_at(std::span<std::byte> record, std::size_t index) {
    return record.data() + sizeof(RecordHeader) + index * sizeof(ColumnEntry);
}

bool lies_within(const ColumnEntry& entry, std::size_t record_bytes) {
    return entry.offset() <= record_bytes && entry.bytes <= record_bytes - entry.offset();
}

}  // namespace

void seal_record(std::span<std::byte> record) {
    if (record.size() < sizeof(RecordHeader)) return;
    RecordHeader& header = header_of(record);
    if (header.checksum_kind == static_cast<std::uint8_t>(Checksum::none)) return;
    header.checksum = XXH3_64bits(record.data() + sizeof header, record.size() - sizeof header);
}

bool has_checksum(std::span<const std::byte> record) {
    return record.size() >= sizeof(RecordHeader) &&
           load_once<RecordHeader>(record.data()).checksum_kind !=
               static_cast<std::uint8_t>(Checksum::none);
}

void seal_with_checksum(std::span<std::byte> record) {
    if (record.size() < sizeof(RecordHeader)) return;
    header_of(record).checksum_kind = static_cast<std::uint8_t>(Checksum::xxh3);
    seal_record(record);
}

std::span<std::byte> column_bytes(std::span<std::byte> record, std::uint16_t column, DType dtype) {
    const std::size_t count = column_count(record);
    for (std::size_t i = 0; i < count; i++) {
        const auto entry = load_once<ColumnEntry>(entry_at(record, i));
        if (entry.column != column) continue;
        if (DType{entry.dtype_code(), entry.dtype_bits} != dtype) return {};
        if (!lies_within(entry, record.size())) return {};
        return record.subspan(entry.offset(), entry.bytes);
    }
    return {};
}

std::uint64_t shrink_record(std::span<std::byte> record, std::uint32_t n_tokens,
                            const Schema& schema) {
    const std::uint64_t whole = record.size();
    const std::size_t count = column_count(record);
    if (count == 0) return whole;
    RecordHeader& header = header_of(record);
    const auto claimed = load_once<RecordHeader>(record.data());
    if (n_tokens > claimed.n_tokens) return whole;
    header.n_tokens = n_tokens;
    header.n_prompt = std::min(claimed.n_prompt, n_tokens);
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < count; i++) {
        auto entry = load_once<ColumnEntry>(entry_at(record, i));
        const bool sound = entry.column < schema.columns().size() && lies_within(entry, whole);
        if (!sound) return whole;
        if (i == 0) end = entry.offset();
        const std::uint64_t from = entry.offset();
        if (schema.columns()[entry.column].per == Per::token) {
            const std::uint64_t row_bytes = entry.shape[0] != 0 ? entry.bytes / entry.shape[0] : 0;
            entry.shape[0] = n_tokens;
            entry.bytes = row_bytes * n_tokens;
        }
        const std::uint64_t padded = round_up(entry.bytes, line_bytes);
        // The column moves to the front, behind the directory, and does not grow.
        const bool fits = end >= sizeof(RecordHeader) + count * sizeof(ColumnEntry) &&
                          end <= from && lies_within(entry, whole) && padded <= whole - end;
        if (!fits) return whole;
        std::memmove(record.data() + end, record.data() + from, entry.bytes);
        entry.offset_lines = static_cast<std::uint32_t>(end / line_bytes);
        std::memset(record.data() + end + entry.bytes, 0, padded - entry.bytes);
        std::memcpy(entry_at(record, i), &entry, sizeof entry);
        end += padded;
    }
    header.record_bytes = end;
    return end;
}

bool set_outcome(std::span<std::byte> record, const RolloutOutcome& outcome) {
    if (record.size() < sizeof(RecordHeader)) return false;
    RecordHeader& header = header_of(record);
    const auto claimed = load_once<RecordHeader>(record.data());
    if (outcome.n_prompt.value_or(0) > claimed.n_tokens) return false;
    header.n_prompt = outcome.n_prompt.value_or(claimed.n_prompt);
    header.status = outcome.status ? static_cast<std::uint8_t>(*outcome.status) : claimed.status;
    header.policy_version_min = outcome.policy_version_min.value_or(claimed.policy_version_min);
    header.policy_version_max = outcome.policy_version_max.value_or(claimed.policy_version_max);
    header.finished_ns = outcome.finished_ns.value_or(claimed.finished_ns);
    if (outcome.reward) {
        header.reward_bits = std::bit_cast<std::uint64_t>(*outcome.reward);
        header.flags = claimed.flags | flag_reward_set;
    }
    return true;
}

std::string_view take_versions(std::span<std::byte> record) {
    const auto bytes =
        column_bytes(record, static_cast<std::uint16_t>(Std::policy_version), dtype_i64);
    if (bytes.empty()) return {};
    RecordHeader& header = header_of(record);
    const VersionRange range = version_range(
        {reinterpret_cast<const std::int64_t*>(bytes.data()), bytes.size() / sizeof(std::int64_t)},
        header.n_tokens, header.n_prompt);
    if (range.max < 0) return range.problem;
    header.policy_version_min = range.min;
    header.policy_version_max = range.max;
    return {};
}

}  // namespace rollring
