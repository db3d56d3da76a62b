#include "remote_staging.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rollring::weights {
namespace {

using device::CopyJob;

// Of a job's memory beside: reads and writes of 16 bytes are whole, and begin with a sector.
constexpr std::uint64_t alignment = 128;

struct Dim {
    std::int64_t extent;
    std::int64_t to;    // stride in the tensor
    std::int64_t from;  // in the slot
    std::int64_t beside = 0;
};

std::vector<Dim> dims_of(const CopyJob& job) {
    std::vector<Dim> dims;
    dims.reserve(std::max<std::size_t>(1, job.shape.size()));
    for (std::size_t i = 0; i < job.shape.size(); i++) {
        dims.push_back({job.shape[i], job.strides[i], job.packed_strides[i]});
    }
    if (dims.empty()) dims.push_back({static_cast<std::int64_t>(job.elements), 1, 1});
    return dims;
}

// Beside they lie as in the slot, without gaps, so that the link is read in long runs.
void lay_beside(std::vector<Dim>& dims) {
    std::vector<std::size_t> order(dims.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::ranges::greater{},
                      [&](std::size_t i) { return std::pair(dims[i].from, order.size() - i); });
    std::int64_t stride = 1;
    for (std::size_t at = order.size(); at-- > 0;) {
        dims[order[at]].beside = stride;
        stride *= dims[order[at]].extent;
    }
}

// A copy of these extents; dimensions that are adjacent on both sides are joined.
void set_shape(CopyJob& job, const std::vector<Dim>& dims, std::int64_t Dim::* to,
               std::int64_t Dim::* from) {
    job.shape.clear();
    job.strides.clear();
    job.packed_strides.clear();
    std::vector<Dim> sorted = dims;
    std::ranges::sort(sorted, std::ranges::greater{},
                      [&](const Dim& dim) { return std::pair(dim.*to, dim.*from); });
    for (const Dim& dim : sorted) {
        if (!job.shape.empty() && job.strides.back() == dim.*to * dim.extent &&
            job.packed_strides.back() == dim.*from * dim.extent) {
            job.shape.back() *= dim.extent;
            job.strides.back() = dim.*to;
            job.packed_strides.back() = dim.*from;
            continue;
        }
        job.shape.push_back(dim.extent);
        job.strides.push_back(dim.*to);
        job.packed_strides.push_back(dim.*from);
    }
    const bool contiguous =
        job.shape.size() == 1 && job.strides[0] == 1 && job.packed_strides[0] == 1;
    if (!contiguous) return;
    job.shape.clear();
    job.strides.clear();
    job.packed_strides.clear();
}

}  // namespace

Result<std::unique_ptr<RemoteStaging>> RemoteStaging::make(
    const std::vector<std::vector<CopyJob>>& parts, device::Memory& memory, device::Mover& mover) {
    std::unique_ptr<RemoteStaging> made(new RemoteStaging);
    std::uint64_t end = 0;
    for (const auto& jobs : parts) {
        for (const CopyJob& job : jobs) {
            end = (end + alignment - 1) / alignment * alignment + job.packed_bytes();
        }
    }
    made->bytes_ = end;
    auto block = memory.make(std::max<std::uint64_t>(end, 1));
    if (!block) return std::unexpected(block.error());
    made->block_ = std::move(*block);
    std::uint64_t at = 0;
    for (const auto& jobs : parts) {
        std::vector<CopyJob> fetches;
        std::vector<CopyJob> places;
        for (const CopyJob& job : jobs) {
            at = (at + alignment - 1) / alignment * alignment;
            std::vector<Dim> dims = dims_of(job);
            lay_beside(dims);
            CopyJob& fetch = fetches.emplace_back(job);
            fetch.tensor = made->block_->data() + at;
            set_shape(fetch, dims, &Dim::beside, &Dim::from);
            CopyJob& place = places.emplace_back(job);
            place.slot_offset = at;
            set_shape(place, dims, &Dim::to, &Dim::beside);
            at += job.packed_bytes();
        }
        mover.copy_over_link(true);
        auto over_link = mover.plan(std::move(fetches));
        mover.copy_over_link(false);
        if (!over_link) return std::unexpected(over_link.error());
        auto within = mover.plan(std::move(places));
        if (!within) return std::unexpected(within.error());
        made->fetches_.push_back(std::move(*over_link));
        made->places_.push_back(std::move(*within));
    }
    return made;
}

}  // namespace rollring::weights
