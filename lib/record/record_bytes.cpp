#include "record_bytes.hpp"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

#include "fits.hpp"
#include "wire.hpp"

namespace rollring {
namespace {

RecordHeader& header_of(std::span<std::byte> record) {
    return *reinterpret_cast<RecordHeader*>(record.data());
}

std::span<ColumnEntry> entries_of(std::span<std::byte> record) {
    return {reinterpret_cast<ColumnEntry*>(record.data() + sizeof(RecordHeader)),
            header_of(record).column_count};
}

}  // namespace

void seal_record(std::span<std::byte> record) {
    RecordHeader& header = header_of(record);
    if (header.checksum_kind == static_cast<std::uint8_t>(Checksum::none)) return;
    header.checksum =
        XXH3_64bits(record.data() + sizeof header, header.record_bytes - sizeof header);
}

std::span<std::byte> column_bytes(std::span<std::byte> record, std::uint16_t column, DType dtype) {
    for (const ColumnEntry& entry : entries_of(record)) {
        if (entry.column != column) continue;
        if (DType{entry.dtype_code(), entry.dtype_bits} != dtype) return {};
        return record.subspan(entry.offset(), entry.bytes);
    }
    return {};
}

std::uint64_t shrink_record(std::span<std::byte> record, std::uint32_t n_tokens,
                            const Schema& schema) {
    RecordHeader& header = header_of(record);
    ROLLRING_ASSERT(n_tokens <= header.n_tokens,
                    fmt::format("shrink to {} of {} tokens", n_tokens, header.n_tokens));
    header.n_tokens = n_tokens;
    header.n_prompt = std::min(header.n_prompt, n_tokens);
    std::uint64_t end = 0;
    for (ColumnEntry& entry : entries_of(record)) {
        if (end == 0) end = entry.offset();
        if (schema.columns()[entry.column].per == Per::token) {
            const std::uint64_t row_bytes = entry.shape[0] != 0 ? entry.bytes / entry.shape[0] : 0;
            entry.shape[0] = n_tokens;
            entry.bytes = row_bytes * n_tokens;
        }
        std::memmove(record.data() + end, record.data() + entry.offset(), entry.bytes);
        entry.offset_lines = static_cast<std::uint32_t>(end / line_bytes);
        const std::uint64_t padded = round_up(entry.bytes, line_bytes);
        std::memset(record.data() + end + entry.bytes, 0, padded - entry.bytes);
        end += padded;
    }
    if (end != 0) header.record_bytes = end;
    return header.record_bytes;
}

}  // namespace rollring
