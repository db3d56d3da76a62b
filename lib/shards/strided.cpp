#include "strided.hpp"

#include <algorithm>
#include <utility>

namespace rollring::shards {
namespace {

Strided inner(const Strided& of, std::uint64_t slice) {
    return {of.offset + slice * of.dims[0].stride, of.dims.subspan(1)};
}

bool is_solid(const Strided& one) {
    return one.dims.empty() || (one.dims.size() == 1 && one.dims[0].stride == 1);
}

// Whether y shares an element with one of the slices of x.
bool slices_meet(const Strided& x, const Strided& y) {
    const std::uint64_t stride = x.dims[0].stride;
    const std::uint64_t slice_reach = inner(x, 0).reach();
    const std::uint64_t first_end = x.offset + slice_reach;
    const std::uint64_t from =
        y.offset <= first_end ? 0 : (y.offset - first_end + stride - 1) / stride;
    const std::uint64_t to = std::min((y.last() - x.offset) / stride + 1, x.dims[0].extent);
    for (std::uint64_t slice = from; slice < to; slice++) {
        if (meet(inner(x, slice), y)) return true;
    }
    return false;
}

}  // namespace

std::vector<Step> dims_of(std::span<const std::int64_t> extents,
                          std::span<const std::int64_t> strides) {
    std::vector<Step> dims;
    for (std::size_t i = 0; i < extents.size(); i++) {
        if (extents[i] == 1) continue;
        dims.push_back(
            {static_cast<std::uint64_t>(extents[i]), static_cast<std::uint64_t>(strides[i])});
    }
    std::ranges::sort(dims, [](const Step& a, const Step& b) { return a.stride > b.stride; });
    return dims;
}

bool is_nested(std::span<const Step> dims) {
    for (std::size_t i = 0; i < dims.size(); i++) {
        const std::uint64_t below = Strided{0, dims.subspan(i + 1)}.reach();
        if (dims[i].stride <= below) return false;
    }
    return true;
}

bool meet(Strided a, Strided b) {
    if (b.offset < a.offset) std::swap(a, b);
    if (a.last() < b.offset) return false;
    if (is_solid(a) && is_solid(b)) return true;
    if (!a.dims.empty() && !b.dims.empty() && a.dims[0].stride == b.dims[0].stride) {
        // Rows of one pitch: where no row of b crosses into the next row of a, the rows decide.
        const std::uint64_t stride = a.dims[0].stride;
        const std::uint64_t rows = (b.offset - a.offset) / stride;
        const std::uint64_t within = (b.offset - a.offset) % stride;
        if (within + inner(b, 0).reach() < stride) {
            if (rows >= a.dims[0].extent) return false;
            return meet({0, a.dims.subspan(1)}, {within, b.dims.subspan(1)});
        }
    }
    const bool a_is_wider =
        !a.dims.empty() && (b.dims.empty() || a.dims[0].stride >= b.dims[0].stride);
    return a_is_wider ? slices_meet(a, b) : slices_meet(b, a);
}

}  // namespace rollring::shards
