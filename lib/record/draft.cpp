#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "fits.hpp"
#include "rollring/trajectory.hpp"
#include "wire.hpp"

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

Draft& Draft::set_text(Std column, std::string_view text) {
    const void* data = text.data();  // a length travels with it
    place(index(column), dtype_u8, rows(text.size()), data);
    return *this;
}

std::uint32_t Draft::rows(std::size_t count) {
    ROLLRING_ASSERT(count <= std::numeric_limits<std::uint32_t>::max(),
                    "a column has at most 2^32 - 1 rows");
    return static_cast<std::uint32_t>(count);
}

Draft& Draft::add(const DraftColumn& column) {
    slot(column.column) = column;
    return *this;
}

void Draft::clear() {
    meta = {};
    count_ = 0;
}

const DraftColumn* Draft::find(Std column) const {
    for (const auto& candidate : columns()) {
        if (candidate.column == index(column)) return &candidate;
    }
    return nullptr;
}

std::string_view Draft::instance_id() const {
    const DraftColumn* id = find(Std::instance_id);
    if (id == nullptr || id->data == nullptr) return {};
    return {static_cast<const char*>(id->data), id->shape[0]};
}

std::uint32_t Draft::n_tokens() const {
    const DraftColumn* tokens = find(Std::token_ids);
    return tokens != nullptr ? tokens->shape[0] : 0;
}

}  // namespace rollring
