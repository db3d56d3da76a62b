#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "fits.hpp"
#include "record_bytes.hpp"
#include "rollring/trajectory.hpp"
#include "wire.hpp"

namespace rollring {

Encoder::Encoder(const Draft& draft, const Schema& schema, Checksum checksum)
    : draft_(&draft), checksum_(checksum), problem_(check(schema)) {
    bytes_ =
        round_up(sizeof(RecordHeader) + draft.columns().size() * sizeof(ColumnEntry), line_bytes);
    if (!problem_.empty()) return;
    for (std::size_t i = 0; i < draft.columns().size(); i++) {
        offsets_[i] = bytes_;
        bytes_ += round_up(draft.columns()[i].bytes(), line_bytes);
    }
}

std::string_view Encoder::check(const Schema& schema) const {
    const std::uint32_t n_tokens = draft_->n_tokens();
    if (draft_->meta.n_prompt > n_tokens) return "n_prompt is greater than n_tokens";
    if (draft_->instance_id().empty()) return "instance_id is empty";
    for (const auto& column : draft_->columns()) {
        if (column.column >= schema.columns().size()) return "a column is not in the ring's schema";
        const auto problem = problem_of({column.dtype, column.dims, column.shape},
                                        schema.columns()[column.column], n_tokens);
        if (!problem.empty()) return problem;
        if (column.bytes() > lane_bytes_max) return "a column has more bytes than a lane can hold";
    }
    if (!promises_tokens(draft_->meta.status)) return {};
    for (std::uint16_t i = 0; i < schema.columns().size(); i++) {
        if (!schema.columns()[i].required) continue;
        bool present = false;
        for (const auto& column : draft_->columns()) present |= column.column == i;
        if (!present) return "a required column is missing";
    }
    return {};
}

void Encoder::write(std::span<std::byte> to, std::uint64_t run_id,
                    std::int64_t policy_version) const {
    const Meta& meta = draft_->meta;
    const GroupKey key = GroupKey::of(draft_->instance_id(), meta.visit);
    RecordHeader header{};
    header.magic = record_magic;
    header.abi = record_abi;
    header.header_bytes = sizeof header;
    header.record_bytes = bytes_;
    header.run_id = run_id;
    header.key_low = key.low;
    header.key_high = key.high;
    header.visit = meta.visit;
    header.repetition_id = meta.repetition_id;
    header.group_size = meta.group_size;
    header.attempt = meta.attempt;
    header.flags = (meta.reward ? flag_reward_set : 0U) |
                   (meta.last_segment ? flag_last_segment : 0U) |
                   (meta.source_id ? flag_source_set : 0U);
    header.source_id = meta.source_id.value_or(0);
    header.n_tokens = draft_->n_tokens();
    header.n_prompt = meta.n_prompt;
    const bool unversioned = meta.policy_version_min < 0 && meta.policy_version_max < 0;
    header.policy_version_min = unversioned ? policy_version : meta.policy_version_min;
    header.policy_version_max = unversioned ? policy_version : meta.policy_version_max;
    header.reward_bits = std::bit_cast<std::uint64_t>(meta.reward.value_or(0.0));
    header.created_ns = meta.created_ns;
    header.finished_ns = meta.finished_ns;
    header.segment_index = meta.segment_index;
    header.column_count = static_cast<std::uint16_t>(draft_->columns().size());
    header.origin = meta.origin;
    header.status = static_cast<std::uint8_t>(meta.status);
    header.checksum_kind = static_cast<std::uint8_t>(checksum_);
    std::memcpy(to.data(), &header, sizeof header);

    std::byte* entry_at = to.data() + sizeof header;
    for (std::size_t i = 0; i < draft_->columns().size(); i++) {
        const DraftColumn& column = draft_->columns()[i];
        ColumnEntry entry{};
        entry.column = column.column;
        entry.dtype_code = column.dtype.code;
        entry.dtype_bits = column.dtype.bits;
        entry.dims = column.dims;
        entry.offset = offsets_[i];
        entry.bytes = column.bytes();
        std::ranges::copy(column.shape, entry.shape);
        std::memcpy(entry_at, &entry, sizeof entry);
        entry_at += sizeof entry;
        if (column.data != nullptr && entry.bytes != 0) {
            std::memcpy(to.data() + entry.offset, column.data, entry.bytes);
        }
        // Old bytes of the lane must not reach the reader, nor the checksum.
        const std::uint64_t padding = round_up(entry.bytes, line_bytes) - entry.bytes;
        std::memset(to.data() + entry.offset + entry.bytes, 0, padding);
    }
    std::memset(entry_at, 0, static_cast<std::size_t>(to.data() + offsets_[0] - entry_at));
}

}  // namespace rollring
