#include "job_tables.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "view_layout.hpp"

namespace rollring::cuda {

using device::Cast;
using device::CopyJob;

static_assert(CopyJob::dims_max == dims_max);

namespace {

Features features_of(const CopyJob& job) {
    if (!job.shape.empty()) return Features::anything;
    return job.cast == Cast::none ? Features::plain : Features::casts;
}

Layout lay_out(const CopyJob& job) {
    Layout layout{};
    layout.dims = job.shape.size();
    for (std::size_t d = 0; d < job.shape.size(); d++) {
        layout.shape[d] = static_cast<std::uint64_t>(job.shape[d]);
        layout.strides[d] = job.strides[d] * static_cast<std::int64_t>(job.element_bytes);
    }
    return layout;
}

}  // namespace

std::string fault_of(const CopyJob& job) {
    if (!std::has_single_bit(job.element_bytes) || job.element_bytes > 8) {
        return fmt::format("elements of {} B; 1, 2, 4 and 8 are possible", job.element_bytes);
    }
    if (job.cast != Cast::none && job.element_bytes != 4) return "only f32 can be cast";
    const std::uint64_t alignment = job.view ? job.element_bytes : device::piece_alignment;
    if (job.slot_offset % alignment != 0) {
        return fmt::format("slot offset {} is not a multiple of {}", job.slot_offset, alignment);
    }
    if (job.elements > elements_max || job.first_element > elements_max) {
        return fmt::format("elements {} from {} on, more than a GPU holds", job.elements,
                           job.first_element);
    }
    if (job.shape.size() > CopyJob::dims_max || job.shape.size() != job.strides.size()) {
        return fmt::format("{} extents and {} strides; up to {} of both are possible",
                           job.shape.size(), job.strides.size(), CopyJob::dims_max);
    }
    std::string fault = fault_of_view(job);
    if (!fault.empty() || job.shape.empty()) return fault;
    std::uint64_t elements = 1;
    for (const std::int64_t extent : job.shape) {
        if (extent <= 0) return fmt::format("an extent of {}", extent);
        if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(extent), &elements)) {
            return "more elements than can be counted";
        }
    }
    if (job.first_element + job.elements > elements) {
        return fmt::format("elements {} to {} of {}", job.first_element,
                           job.first_element + job.elements, elements);
    }
    return {};
}

void Tables::add(const CopyJob& job, std::uint64_t tile_bytes) {
    const std::size_t index = jobs.size();
    const bool strided = !job.shape.empty();
    const std::uint64_t first_byte = strided ? 0 : job.first_element * job.element_bytes;
    DeviceJob row{};
    row.tensor = reinterpret_cast<std::uint64_t>(job.tensor) + first_byte;
    row.slot_offset = job.slot_offset;
    row.elements = job.elements;
    row.first_element = job.first_element;
    row.element_shift = static_cast<std::uint32_t>(std::countr_zero(job.element_bytes));
    row.cast = static_cast<std::uint32_t>(job.cast);
    if (strided) {
        layouts.push_back(job.view ? lay_out_view(job, row) : lay_out(job));
        row.layout = static_cast<std::uint32_t>(layouts.size());
    }
    jobs.push_back(row);
    host_jobs.push_back({tiles.size(), first_byte, features_of(job)});
    if (row.view == view_none) features = std::max(features, features_of(job));
    casts = casts || job.cast != Cast::none;
    views = views || job.view;
    if (job.tensor == nullptr && job.elements > 0 && !without_address) without_address = index;
    const std::uint64_t per_tile = tile_bytes >> row.element_shift;
    if (row.view == view_none) bytes += row.elements << row.element_shift;
    std::vector<Tile>& into = row.view == view_none ? tiles : view_tiles;
    for (std::uint64_t t = 0; t * per_tile < row.elements; t++) {
        into.push_back({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(t)});
    }
}

}  // namespace rollring::cuda
