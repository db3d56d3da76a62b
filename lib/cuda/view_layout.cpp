#include "view_layout.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "job_tables.hpp"

namespace rollring::cuda {

using device::CopyJob;

std::string fault_of_view(const CopyJob& job) {
    if (!job.view) {
        return job.packed_strides.empty() ? "" : "strides in the slot, without being a view";
    }
    if (job.packed_strides.size() != job.shape.size()) {
        return fmt::format("{} extents and {} strides in the slot", job.shape.size(),
                           job.packed_strides.size());
    }
    if (std::ranges::any_of(job.packed_strides, [](std::int64_t s) { return s < 0; })) {
        return "a stride in the slot below zero";
    }
    if (job.first_element != 0 || job.cast != device::Cast::none) {
        return "a view that begins within the tensor, or casts";
    }
    if (job.shape.empty()) return {};
    std::uint64_t elements = 1;
    std::uint64_t largest = 1;
    for (const std::int64_t extent : job.shape) {
        if (extent <= 0) return fmt::format("an extent of {}", extent);
        const auto count = static_cast<std::uint64_t>(extent);
        if (elements > 1) largest = std::max(largest, count);
        if (__builtin_mul_overflow(elements, count, &elements)) {
            return "more elements than can be counted";
        }
    }
    if (elements != job.elements) {
        return fmt::format("a view of other than {} elements", job.elements);
    }
    // In bytes, because a unit may be a byte; see reciprocal_of.
    if (elements > elements_max || largest > (std::uint64_t{1} << 58) / elements) {
        return "a view of more elements in longer rows than can be counted";
    }
    return {};
}

namespace {

// floor(2^64 / extent) + 1, for extents above 1. A number times that is 2^64 * number / extent and
// at most the number more, so that its upper half is the quotient where number * extent < 2^64.
std::uint64_t reciprocal_of(std::uint64_t extent) {
    return ~std::uint64_t{0} / extent + 1;
}

// Drops extents of 1, which the kernels cannot divide by, and leaves one dimension at least.
void finish(Layout& layout, std::size_t dims) {
    std::size_t kept = 0;
    for (std::size_t d = 0; d < dims; d++) {
        if (layout.shape[d] == 1 && (kept > 0 || d + 1 < dims)) continue;
        layout.shape[kept] = layout.shape[d];
        layout.strides[kept] = layout.strides[d];
        layout.packed_strides[kept] = layout.packed_strides[d];
        layout.reciprocals[kept] = kept == 0 ? 0 : reciprocal_of(layout.shape[kept]);
        kept++;
    }
    layout.dims = kept;
}

}  // namespace

Layout lay_out_view(const CopyJob& job, DeviceJob& row) {
    Layout layout{};
    std::size_t dims = job.shape.size();
    const std::int64_t element_bytes = job.element_bytes;
    for (std::size_t d = 0; d < dims; d++) {
        layout.shape[d] = static_cast<std::uint64_t>(job.shape[d]);
        layout.strides[d] = job.strides[d] * element_bytes;
        layout.packed_strides[d] = job.packed_strides[d] * element_bytes;
    }
    // Rows of adjacent bytes on both sides: a whole dimension, or one element.
    if (job.strides.back() != 1 || job.packed_strides.back() != 1) layout.shape[dims++] = 1;
    const std::size_t last = dims - 1;
    const std::uint64_t row_bytes = layout.shape[last] * job.element_bytes;
    // All addresses are multiples of the lowest bit of these.
    std::uint64_t bits =
        16 | row_bytes | job.slot_offset | reinterpret_cast<std::uint64_t>(job.tensor);
    for (std::size_t d = 0; d < last; d++) {
        bits |= static_cast<std::uint64_t>(layout.strides[d] | layout.packed_strides[d]);
    }
    const int shift = std::countr_zero(bits);
    const std::int64_t unit = std::int64_t{1} << shift;
    layout.shape[last] = row_bytes >> shift;
    layout.strides[last] = layout.packed_strides[last] = unit;
    finish(layout, dims);
    row.element_shift = static_cast<std::uint32_t>(shift);
    row.elements = job.elements * job.element_bytes >> shift;
    const std::uint64_t long_bytes = unit == 16 ? long_vector_row_bytes : long_row_bytes;
    row.view = row_bytes < long_bytes ? view_units : view_rows;
    return layout;
}

}  // namespace rollring::cuda
