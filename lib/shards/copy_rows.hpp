#pragma once
// The copies of a plan while they are made: joined, and merged with their neighbours.

#include <cstdint>
#include <span>
#include <vector>

namespace rollring::shards {

struct CopyRow {
    std::uint64_t from_offset;
    std::uint64_t to_offset;
    std::uint32_t tensor;
    std::uint32_t from;
    std::uint32_t to;
    std::uint32_t dims;
    std::uint64_t first_dim;
};

// The distance of neighbours on both sides.
struct CopyDim {
    std::int64_t extent;
    std::int64_t from;
    std::int64_t to;
    friend bool operator==(const CopyDim&, const CopyDim&) = default;
};

// The copies and their dimensions in one vector each: a plan has tens of thousands.
struct CopyRows {
    std::vector<CopyRow> rows;
    std::vector<CopyDim> dims;

    [[nodiscard]] std::span<const CopyDim> dims_of(const CopyRow& row) const {
        return std::span(dims).subspan(row.first_dim, row.dims);
    }
    // Adds a row with these dimensions, of which none may have an extent of 1: sorts them by their
    // distance in `to`, the largest first, and joins those that are adjacent on both sides.
    void add(CopyRow row, std::span<CopyDim> unsorted);
};

// Rows of one pair of memories become neighbours, and rows of the same dimensions at regular
// distances become one with a dimension more, as long as it has at most `dims_max`.
CopyRows merge(const CopyRows& rows, std::size_t dims_max);

}  // namespace rollring::shards
