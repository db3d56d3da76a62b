#include <cstring>

#include "fits.hpp"
#include "rollring/trajectory.hpp"
#include "wire.hpp"
#include "xxh3.hpp"

namespace rollring {
namespace {

std::string_view problem_of(const RecordHeader& header, std::uint64_t payload_bytes,
                            const Schema& schema) {
    if (header.magic != record_magic) return "record: wrong magic";
    if (header.abi != record_abi || header.header_bytes != sizeof(RecordHeader)) {
        return "record: written by an incompatible version";
    }
    if (header.record_bytes != payload_bytes) return "record: the length does not match the frame";
    if (header.schema_id != schema.id()) return "record: written for another schema";
    if (header.column_count > columns_max) return "record: too many columns";
    if ((header.flags & ~record_flags_known) != 0) return "record: unknown flags";
    const Claims claims{
        header.status,
        header.checksum_kind,
        header.group_size,
        header.n_prompt,
        header.n_tokens,
        (header.flags & flag_repetition_set) != 0,
        header.subsequence_index == 0 && (header.flags & flag_last_subsequence) != 0};
    if (const auto problem = problem_of(claims); !problem.empty()) return problem;
    if (sizeof(RecordHeader) + header.column_count * sizeof(ColumnEntry) > payload_bytes) {
        return "record: the column directory exceeds the record";
    }
    return {};
}

std::string_view shape_problem(const ColumnEntry& entry, const Schema& schema,
                               std::uint32_t n_tokens) {
    const ColumnShape shape{
        {entry.dtype_code(), entry.dtype_bits}, entry.dims(), std::to_array(entry.shape)};
    const auto problem = problem_of(shape, schema.columns()[entry.column], n_tokens);
    if (!problem.empty()) return problem;
    if (bytes_of(shape) != entry.bytes) return "record: a column's size does not match its shape";
    return {};
}

std::string_view problem_of(const ColumnEntry& entry, const Schema& schema,
                            std::uint32_t n_tokens) {
    const Schema::Rule rule = schema.rule(entry.column);
    const DType dtype{entry.dtype_code(), entry.dtype_bits};
    if (is_plain(rule, dtype, entry.dims(), entry.shape[0], n_tokens) &&
        entry.bytes == std::uint64_t{entry.shape[0]} * rule.dtype.bytes()) [[likely]] {
        return {};
    }
    return shape_problem(entry, schema, n_tokens);
}

// In place: composing a Meta elsewhere and copying it would stall on its own stores.
void take_meta(const RecordHeader& header, Meta& meta) {
    meta.visit = header.visit;
    meta.repetition_id = {};
    if ((header.flags & flag_repetition_set) != 0) meta.repetition_id = header.repetition_id;
    meta.group_size = header.group_size;
    meta.subsequence_index = header.subsequence_index;
    meta.last_subsequence = (header.flags & flag_last_subsequence) != 0;
    meta.attempt = header.attempt;
    meta.source_id.reset();
    if ((header.flags & flag_source_set) != 0) meta.source_id = header.source_id;
    meta.status = static_cast<Status>(header.status);  // NOLINT: checked in problem_of()
    meta.n_prompt = header.n_prompt;
    meta.policy_version_min = header.policy_version_min;
    meta.policy_version_max = header.policy_version_max;
    meta.reward.reset();
    if ((header.flags & flag_reward_set) != 0) {
        meta.reward = std::bit_cast<double>(header.reward_bits);
    }
    meta.created_ns = header.created_ns;
    meta.finished_ns = header.finished_ns;
    meta.origin = header.origin;
    meta.user_is_text = (header.flags & flag_user_is_text) != 0;
}

}  // namespace

std::string_view TrajectoryView::parse(std::span<const std::byte> payload, const Schema& schema,
                                       Look look) {
    columns_.take(0);
    if (payload.size() < sizeof(RecordHeader)) return "record: shorter than its header";
    const auto header = load_once<RecordHeader>(payload.data());
    if (auto problem = problem_of(header, payload.size(), schema); !problem.empty()) return problem;
    n_tokens_ = header.n_tokens;
    const std::uint64_t columns_from =
        sizeof(RecordHeader) + header.column_count * sizeof(ColumnEntry);
    std::byte* const columns = columns_.empty(header.column_count);
    std::uint32_t seen = 0;
    for (std::uint16_t i = 0; i < header.column_count; i++) {
        const auto entry =
            load_once<ColumnEntry>(payload.data() + sizeof(RecordHeader) + i * sizeof(ColumnEntry));
        if (entry.column >= schema.columns().size()) return "record: unknown column";
        if ((seen >> entry.column & 1) != 0) return "record: duplicate column";
        seen |= 1U << entry.column;
        const auto problem = problem_of(entry, schema, n_tokens_);
        if (!problem.empty()) return problem;
        if (entry.offset() < columns_from || entry.offset() > payload.size() ||
            entry.bytes > payload.size() - entry.offset()) {
            return "record: a column exceeds the record";
        }
        ColumnView& view = *new (columns + i * sizeof(ColumnView)) ColumnView;
        view.column = entry.column;
        view.dtype.code = entry.dtype_code();
        view.dtype.bits = entry.dtype_bits;
        view.dims = entry.dims();
        view.shape = std::to_array(entry.shape);
        view.data = payload.subspan(entry.offset(), entry.bytes);
    }
    columns_.take(header.column_count);
    take_meta(header, meta_);
    if (promises_tokens(meta_.status) && (schema.required() & ~seen) != 0) {
        return "record: a required column is missing";
    }
    if (find(static_cast<std::uint16_t>(Std::token_ids)) == nullptr && n_tokens_ != 0) {
        return "record: n_tokens without token_ids";
    }
    key_ = {header.key_low, header.key_high};
    if (look == Look::first && key_ != GroupKey::of(instance_id(), meta_.visit)) {
        return "record: the group key does not match instance_id and visit";
    }
    run_id_ = header.run_id;
    if (look == Look::first && header.checksum_kind == static_cast<std::uint8_t>(Checksum::xxh3) &&
        header.checksum != XXH3_64bits(payload.data() + sizeof(RecordHeader),
                                       payload.size() - sizeof(RecordHeader))) {
        return "record: checksum mismatch";
    }
    return {};
}

std::string_view TrajectoryView::text(Std column) const {
    const auto bytes = values<std::uint8_t>(column);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const ColumnView* TrajectoryView::find(std::uint16_t column) const {
    for (const auto& candidate : columns()) {
        if (candidate.column == column) return &candidate;
    }
    return nullptr;
}

std::uint64_t TrajectoryView::digest(const Schema& schema) const {
    struct Canonical {
        std::uint64_t visit;
        std::uint64_t reward_bits;
        std::uint32_t repetition_id;
        std::uint32_t attempt;
        std::uint32_t status;
        std::uint32_t reward_set;
    };
    // One NaN for all: JSON does not keep the difference between NaNs.
    double reward = meta_.reward.value_or(0.0);
    if (reward != reward) reward = std::numeric_limits<double>::quiet_NaN();
    const Canonical fixed{meta_.visit,
                          std::bit_cast<std::uint64_t>(reward),
                          meta_.repetition_id.value_or(~std::uint32_t{0}),
                          meta_.attempt,
                          static_cast<std::uint32_t>(meta_.status),
                          meta_.reward.has_value() ? 1U : 0U};
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, &fixed, sizeof fixed);
    for (std::uint16_t i = 0; i < schema.columns().size(); i++) {
        const ColumnView* column = find(i);
        if (column == nullptr) continue;
        const std::string& name = schema.columns()[i].name;
        const std::uint8_t kind[3] = {column->dtype.code, column->dtype.bits, column->dims};
        XXH3_64bits_update(&state, name.data(), name.size() + 1);
        XXH3_64bits_update(&state, kind, sizeof kind);
        XXH3_64bits_update(&state, column->shape.data(), column->dims * sizeof(std::uint32_t));
        XXH3_64bits_update(&state, column->data.data(), column->data.size());
    }
    return XXH3_64bits_digest(&state);
}

}  // namespace rollring
