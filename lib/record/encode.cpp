#include <algorithm>
#include <cstring>

#include "fits.hpp"
#include "record_bytes.hpp"
#include "rollring/trajectory.hpp"
#include "round_up.hpp"
#include "wire.hpp"
#include "xxh3.hpp"

namespace rollring {
namespace {

std::uint64_t directory_end(std::size_t columns) {
    return round_up(sizeof(RecordHeader) + columns * sizeof(ColumnEntry), line_bytes);
}

// `from` may be null: room to be filled later. Old bytes of the lane must reach neither the reader
// nor the checksum, so the rest of the last line becomes zero. From front to back, because each
// line is a miss, and the CPU prefetches lines in order; zeroing the last one first would wait for
// it.
void copy_column(std::byte* to, const void* from, std::uint64_t bytes) {
    const std::uint64_t whole = bytes - bytes % line_bytes;
    if (from != nullptr && whole != 0) std::memcpy(to, from, whole);
    if (whole == bytes) return;
    // A line of known length takes no call.
    std::memset(to + whole, 0, line_bytes);
    if (from != nullptr) {
        std::memcpy(to + whole, static_cast<const std::byte*>(from) + whole, bytes - whole);
    }
}

}  // namespace

Encoder::Encoder(const Draft& draft, const Schema& schema, Checksum checksum)
    : draft_(&draft), checksum_(checksum), schema_id_(schema.id()) {
    problem_ = lay_out(schema);
    if (problem_.empty()) key_ = GroupKey::of(draft.instance_id(), draft.meta.visit);
}

std::string_view Encoder::lay_out(const Schema& schema) {
    const std::uint32_t n_tokens = n_tokens_ = draft_->n_tokens();
    bytes_ = directory_end(draft_->columns().size());
    const Meta& meta = draft_->meta;
    const Claims claims{static_cast<std::uint8_t>(meta.status),
                        static_cast<std::uint8_t>(checksum_),
                        meta.group_size,
                        meta.n_prompt,
                        n_tokens,
                        meta.repetition_id.has_value(),
                        meta.subsequence_index == 0 && meta.last_subsequence};
    if (const auto problem = problem_of(claims); !problem.empty()) return problem;
    if (draft_->instance_id().empty()) return "instance_id is empty";
    std::uint32_t seen = 0;
    std::size_t columns = 0;
    for (const auto& column : draft_->columns()) {
        if (column.column >= schema.columns().size()) return "a column is not in the ring's schema";
        std::uint64_t bytes = std::uint64_t{column.shape[0]} * column.dtype.bytes();
        if (!is_plain(schema.rule(column.column), column.dtype, column.dims, column.shape[0],
                      n_tokens)) [[unlikely]] {
            const ColumnShape shape{column.dtype, column.dims, column.shape};
            const auto problem = problem_of(shape, schema.columns()[column.column], n_tokens);
            if (!problem.empty()) {
                problem_column_ = schema.columns()[column.column].name;
                return problem;
            }
            bytes = bytes_of(shape).value_or(lane_bytes_max + 1);
            if (column.column == static_cast<std::uint16_t>(Std::policy_version)) {
                take_versions(column);
                if (!versions_.problem.empty()) {
                    problem_column_ = schema.columns()[column.column].name;
                    return versions_.problem;
                }
            }
        }
        if (bytes > lane_bytes_max) {
            problem_column_ = schema.columns()[column.column].name;
            return "a column has more bytes than a lane can hold";
        }
        column_bytes_[columns++] = bytes;
        holes_ |= column.data == nullptr && bytes != 0;
        bytes_ += round_up(bytes, line_bytes);
        seen |= std::uint32_t{1} << column.column;
    }
    const std::uint32_t missing = schema.required() & ~seen;
    if (promises_tokens(draft_->meta.status) && missing != 0) {
        problem_column_ =
            schema.columns()[static_cast<std::size_t>(std::countr_zero(missing))].name;
        return "a required column is missing";
    }
    return {};
}

void Encoder::take_versions(const DraftColumn& runs) {
    if (runs.data == nullptr) return;  // written later: see Reservation::commit()
    const auto* const first = static_cast<const std::int64_t*>(runs.data);
    versions_ =
        version_range({first, std::size_t{2} * runs.shape[0]}, n_tokens_, draft_->meta.n_prompt);
}

void Encoder::write(std::span<std::byte> to, std::uint64_t run_id,
                    std::int64_t policy_version) const {
    const Meta& meta = draft_->meta;
    // Every field is written in place: composing a header elsewhere and copying it would stall.
    auto& header = *reinterpret_cast<RecordHeader*>(to.data());
    header.magic = record_magic;
    header.abi = record_abi;
    header.header_bytes = sizeof header;
    header.record_bytes = bytes_;
    header.schema_id = schema_id_;
    header.run_id = run_id;
    header.key_low = key_.low;
    header.key_high = key_.high;
    header.visit = meta.visit;
    header.checksum = 0;
    header.repetition_id = meta.repetition_id.value_or(0);
    header.group_size = meta.group_size;
    header.attempt = meta.attempt;
    header.flags = (meta.reward ? flag_reward_set : 0U) |
                   (meta.last_subsequence ? flag_last_subsequence : 0U) |
                   (meta.source_id ? flag_source_set : 0U) |
                   (meta.repetition_id.has_value() ? flag_repetition_set : 0U) |
                   (meta.user_is_text ? flag_user_is_text : 0U);
    header.source_id = meta.source_id.value_or(0);
    header.n_tokens = n_tokens_;
    header.n_prompt = meta.n_prompt;
    const bool named = meta.policy_version_min >= 0 || meta.policy_version_max >= 0;
    const bool runs = versions_.max >= 0;
    header.policy_version_min = named  ? meta.policy_version_min
                                : runs ? versions_.min
                                       : policy_version;
    header.policy_version_max = named  ? meta.policy_version_max
                                : runs ? versions_.max
                                       : policy_version;
    header.reward_bits = std::bit_cast<std::uint64_t>(meta.reward.value_or(0.0));
    header.created_ns = meta.created_ns;
    header.finished_ns = meta.finished_ns;
    header.subsequence_index = meta.subsequence_index;
    header.column_count = static_cast<std::uint16_t>(draft_->columns().size());
    header.origin = meta.origin;
    header.status = static_cast<std::uint8_t>(meta.status);
    header.checksum_kind = static_cast<std::uint8_t>(checksum_);
    std::ranges::fill(header.reserved, std::uint8_t{0});

    auto* entry = reinterpret_cast<ColumnEntry*>(to.data() + sizeof header);
    std::uint64_t offset = directory_end(draft_->columns().size());
    std::byte* const unused = reinterpret_cast<std::byte*>(entry + draft_->columns().size());
    std::memset(unused, 0, static_cast<std::size_t>(to.data() + offset - unused));
    std::size_t i = 0;
    for (const DraftColumn& column : draft_->columns()) {
        const std::uint64_t bytes = column_bytes_[i++];
        entry->column = column.column;
        entry->code_and_dims = static_cast<std::uint8_t>(column.dtype.code | column.dims << 4);
        entry->dtype_bits = column.dtype.bits;
        entry->offset_lines = static_cast<std::uint32_t>(offset / line_bytes);
        entry->bytes = bytes;
        std::ranges::copy(column.shape, entry->shape);
        entry++;
        copy_column(to.data() + offset, column.data, bytes);
        const std::uint64_t end = offset + round_up(bytes, line_bytes);
        offset = end;
    }
}

}  // namespace rollring
