#include <cstring>

#include "fits.hpp"
#include "rollring/trajectory.hpp"
#include "wire.hpp"
#include "xxh3.hpp"

namespace rollring {
namespace {

constexpr std::string_view status_names[] = {"completed", "truncated", "aborted",
                                             "failed",    "timed_out", "filtered"};

}  // namespace

std::string_view name(Status status) {
    return status_names[static_cast<std::size_t>(status)];
}

std::optional<Status> parse_status(std::string_view text) {
    for (std::size_t i = 0; i < std::size(status_names); i++) {
        if (status_names[i] == text) return static_cast<Status>(i);
    }
    return std::nullopt;
}

GroupKey GroupKey::of(std::string_view instance_id, std::uint64_t visit) {
    const XXH128_hash_t hash = XXH3_128bits_withSeed(instance_id.data(), instance_id.size(), visit);
    return {hash.low64, hash.high64};
}

std::uint64_t DraftColumn::bytes() const {
    return bytes_of({dtype, dims, shape}).value_or(std::numeric_limits<std::uint64_t>::max());
}

Draft Draft::of(const TrajectoryView& record) {
    Draft draft;
    draft.clear();  // of the column that it begins with
    draft.meta = record.meta();
    for (const ColumnView& column : record.columns()) {
        draft.add({.column = column.column,
                   .dtype = column.dtype,
                   .shape = column.shape,
                   .dims = column.dims,
                   .data = column.data.data()});
    }
    return draft;
}

Draft& Draft::set_text(Std column, std::string_view text) {
    const void* data = text.data();  // its length is given to fill()
    fill(index(column), dtype_u8, rows(text.size()), data);
    return *this;
}

Draft& Draft::add(const DraftColumn& column) {
    entry(column.column) = column;
    return *this;
}

void Draft::clear() {
    meta = {};
    count_ = 0;
}

}  // namespace rollring
