#pragma once
// Decides for both sides whether a record's header is plausible, and whether a column agrees with
// its declaration: the view accepts every record that the encoder lets through.

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "rollring/trajectory.hpp"

namespace rollring {

struct ColumnShape {
    DType dtype;
    std::uint8_t dims;
    std::array<std::uint32_t, 4> shape;
};

// Bytes of a column; empty if they do not fit in 64 bits.
inline std::optional<std::uint64_t> bytes_of(const ColumnShape& given) {
    std::uint64_t bytes = given.dtype.bytes();
    for (std::uint8_t i = 0; i < given.dims; i++) {
        // Not by a division, which costs as much as the rest of a short record's check.
        if (__builtin_mul_overflow(bytes, std::uint64_t{given.shape[i]}, &bytes)) {
            return std::nullopt;
        }
    }
    return bytes;
}

inline std::string_view problem_of(const ColumnShape& given, const Column& declared,
                                   std::uint32_t n_tokens) {
    switch (declared.accepts) {
        case Accepts::exact:
            if (given.dtype != declared.dtype)
                return "a column's dtype differs from its declaration";
            break;
        case Accepts::any_integer:
            if (!given.dtype.is_integer()) return "a column needs an integer dtype";
            [[fallthrough]];
        case Accepts::any:
            if (given.dtype.to_string().empty()) return "a column has an unknown dtype";
            break;
    }
    if (given.dims < 1 || given.dims > 4) return "a column needs 1 to 4 dims";
    const bool any_shape = declared.per == Per::record && declared.dims.empty();
    if (!any_shape) {
        if (given.dims != declared.dims.size() + 1)
            return "a column's rank differs from its declaration";
        for (std::size_t i = 0; i < declared.dims.size(); i++) {
            if (declared.dims[i] != 0 && given.shape[i + 1] != declared.dims[i]) {
                return "a column's shape differs from its declaration";
            }
        }
    }
    if (declared.per == Per::token && given.shape[0] != n_tokens) {
        return "the number of rows of a per-token column is not n_tokens";
    }
    return {};
}

// The common case by the schema's short rule, from the fields in place: a shape that is composed in
// memory byte by byte and read back at once would stall the CPU, four times a record.
inline bool is_plain(const Schema::Rule& rule, DType dtype, std::uint8_t dims, std::uint32_t rows,
                     std::uint32_t n_tokens) {
    return rule.plain && dims == 1 && dtype.code == rule.dtype.code &&
           dtype.bits == rule.dtype.bits && (rule.per == Per::record || rows == n_tokens);
}

// Header fields on which others rely. problem_of() names the wrong one.
struct Claims {
    std::uint8_t status;
    std::uint8_t checksum;
    std::uint32_t group_size;
    std::uint32_t n_prompt;
    std::uint32_t n_tokens;
    bool numbered;  // has a repetition_id
    bool alone;     // is the only record of its member
};
inline std::string_view problem_of(const Claims& claims) {
    static_assert(group_size_max == 65'536);
    if (claims.status > static_cast<std::uint8_t>(Status::filtered)) {
        return "status is unknown";
    }
    if (claims.checksum > static_cast<std::uint8_t>(Checksum::xxh3)) {
        return "checksum is unknown";
    }
    if (claims.group_size > group_size_max) return "group_size is greater than 65536";
    if (!claims.numbered && !claims.alone) {
        return "a member of several subsequences needs a repetition_id";
    }
    if (claims.n_prompt > claims.n_tokens) return "n_prompt is greater than n_tokens";
    return {};
}

// Failures carry no tokens: only these statuses promise the required columns.
inline bool promises_tokens(Status status) {
    return status == Status::completed || status == Status::truncated;
}

}  // namespace rollring
