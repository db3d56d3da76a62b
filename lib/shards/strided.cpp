#include "strided.hpp"

#include <algorithm>
#include <utility>

namespace rollring::shards {
namespace {

Strided inner(const Strided& of, std::uint64_t slice) {
    return {of.offset + slice * of.dims[0].stride, of.dims.subspan(1)};
}

// `count` rows of `width` elements each, of which none touches another.
struct Rows {
    std::uint64_t offset;
    std::uint64_t stride;
    std::uint64_t count;
    std::uint64_t width;
};

std::optional<Rows> rows_of(const Strided& of) {
    const bool solid = !of.dims.empty() && of.dims.back().stride == 1;
    const std::size_t outer = of.dims.size() - (solid ? 1 : 0);
    if (outer > 1) return std::nullopt;
    const std::uint64_t width = solid ? of.dims.back().extent : 1;
    if (outer == 0) return Rows{of.offset, width, 1, width};
    return Rows{of.offset, of.dims[0].stride, of.dims[0].extent, width};
}

// The smallest i below `count` with low <= i * step % modulus <= high, where low <= high < modulus;
// `count` if there is none. As Euclid's algorithm does, it goes on with smaller numbers.
std::uint64_t first_multiple(std::uint64_t step, std::uint64_t modulus, std::uint64_t low,
                             std::uint64_t high, std::uint64_t count) {
    if (low == 0 || count == 0) return 0;
    if (step == 0) return count;
    const std::uint64_t first = (low + step - 1) / step;
    if (first * step <= high) return std::min(first, count);
    // No multiple of the step lies in the range itself: i * step - wraps * modulus must.
    const std::uint64_t wraps_end = step * (count - 1) / modulus + 1;
    const std::uint64_t wraps =
        first_multiple(modulus % step, step, step - high % step, step - low % step, wraps_end);
    if (wraps == wraps_end) return count;
    return std::min((low + wraps * modulus + step - 1) / step, count);
}

// Row i of x and row j of y meet if i * x.stride - j * y.stride + (a constant) is in 0 to `slack`.
bool rows_meet(const Rows& x, const Rows& y) {
    const std::uint64_t slack = x.width - 1 + y.width - 1;
    const std::uint64_t ahead = x.offset + x.width - 1;
    // The rows of x between the first one that does not end before y and the last one that does not
    // begin behind it.
    const std::uint64_t from = ahead >= y.offset ? 0 : (y.offset - ahead - 1) / x.stride + 1;
    const std::uint64_t y_last = y.offset + (y.count - 1) * y.stride + y.width - 1;
    if (y_last < x.offset) return false;
    const std::uint64_t to = std::min((y_last - x.offset) / x.stride + 1, x.count);
    if (from >= to) return false;
    const std::uint64_t within = (ahead + from * x.stride - y.offset) % y.stride;
    if (within <= slack) return true;
    const std::uint64_t low = y.stride - within;
    return first_multiple(x.stride % y.stride, y.stride, low, low + slack, to - from) < to - from;
}

// Whether y shares an element with one of the slices of x.
std::optional<bool> slices_meet(const Strided& x, const Strided& y, std::uint64_t& steps) {
    const std::uint64_t stride = x.dims[0].stride;
    const std::uint64_t slice_reach = inner(x, 0).reach();
    const std::uint64_t first_end = x.offset + slice_reach;
    const std::uint64_t from =
        y.offset <= first_end ? 0 : (y.offset - first_end + stride - 1) / stride;
    const std::uint64_t to = std::min((y.last() - x.offset) / stride + 1, x.dims[0].extent);
    for (std::uint64_t slice = from; slice < to; slice++) {
        if (steps == 0) return std::nullopt;
        steps--;
        const std::optional<bool> met = meet(inner(x, slice), y, steps);
        if (!met || *met) return met;
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

std::optional<bool> meet(Strided a, Strided b, std::uint64_t& steps) {
    if (b.offset < a.offset) std::swap(a, b);
    if (a.last() < b.offset) return false;
    const std::optional<Rows> a_rows = rows_of(a);
    const std::optional<Rows> b_rows = rows_of(b);
    if (a_rows && b_rows) return rows_meet(*a_rows, *b_rows);
    if (!a.dims.empty() && !b.dims.empty() && a.dims[0].stride == b.dims[0].stride) {
        // Rows of one pitch: where no row of b crosses into the next row of a, the rows decide.
        const std::uint64_t stride = a.dims[0].stride;
        const std::uint64_t rows = (b.offset - a.offset) / stride;
        const std::uint64_t within = (b.offset - a.offset) % stride;
        if (within + inner(b, 0).reach() < stride) {
            if (rows >= a.dims[0].extent) return false;
            return meet({0, a.dims.subspan(1)}, {within, b.dims.subspan(1)}, steps);
        }
    }
    const bool a_is_wider =
        !a.dims.empty() && (b.dims.empty() || a.dims[0].stride >= b.dims[0].stride);
    return a_is_wider ? slices_meet(a, b, steps) : slices_meet(b, a, steps);
}

}  // namespace rollring::shards
