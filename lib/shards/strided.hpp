#pragma once
// Elements at regular distances in a memory, and whether two such sets share one.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace rollring::shards {

struct Step {
    std::uint64_t extent;  // above 1
    std::uint64_t stride;
};

// Elements offset + i * dims[0].stride + j * dims[1].stride + ..., the largest stride first.
struct Strided {
    std::uint64_t offset = 0;
    std::span<const Step> dims;

    // From the first element to the last one.
    [[nodiscard]] std::uint64_t reach() const {
        std::uint64_t sum = 0;
        for (const Step& dim : dims) sum += (dim.extent - 1) * dim.stride;
        return sum;
    }
    [[nodiscard]] std::uint64_t last() const { return offset + reach(); }
};

// The dimensions above 1, the largest stride first.
std::vector<Step> dims_of(std::span<const std::int64_t> extents,
                          std::span<const std::int64_t> strides);

// Whether every stride is larger than the reach of those after it, so that no element counts twice.
// The order is then that of a memory's rows.
bool is_nested(std::span<const Step> dims);

// Whether two nested sets share an element. Two sets of rows without gaps take a few steps,
// whatever their distances are. Others are compared slice by slice, and each slice takes one of
// `steps`, so that a table cannot keep a program busy: nullopt if they run out.
std::optional<bool> meet(Strided a, Strided b, std::uint64_t& steps);

}  // namespace rollring::shards
