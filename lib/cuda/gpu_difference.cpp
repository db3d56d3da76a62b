#include "gpu_difference.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "delta_args.hpp"
#include "job_tables.hpp"

namespace rollring::cuda {
namespace {

using device::CopyJob;

constexpr std::uint64_t chunk_bytes_min = std::uint64_t{32} << 20;
constexpr std::uint64_t wait_ms = 600'000;  // for a kernel: it has failed, or its stream is stopped

std::uint64_t bytes_of(const std::vector<CopyJob>& jobs) {
    std::uint64_t bytes = 0;
    for (const CopyJob& job : jobs) bytes += job.elements * job.element_bytes;
    return bytes;
}

class GpuDifference : public device::Difference {
  public:
    GpuDifference(std::shared_ptr<const Gpu> gpu, unsigned waves)
        : gpu_(std::move(gpu)), waves_(waves) {}
    Result<void> add_part(const std::vector<CopyJob>& jobs);
    Result<void> make_counters();

    void clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) override;
    Result<bool> compare(std::size_t part, const std::byte* slot, Stream stream) override;
    Result<void> swap(std::size_t part, Stream stream) override;
    [[nodiscard]] Size size() const override { return size_; }

  private:
    struct Part {
        DeviceBuffer jobs;
        DeviceBuffer layouts;
        DeviceBuffer tiles;
        DeviceBuffer heads;
        std::uint64_t tile_count = 0;
        std::uint64_t elements = 0;
        std::uint64_t bytes = 0;
        bool listed = false;
    };
    // Memory for the entries of some parts.
    struct Chunk {
        DeviceBuffer memory;
        std::uint64_t bytes = 0;
        std::uint64_t used = 0;
    };
    [[nodiscard]] DeltaArgs args_for(const Part& part, const std::byte* slot) const;
    Result<DeltaCounters> compare_into(const Part& part, const std::byte* slot, const Chunk& chunk,
                                       CUstream queue);
    [[nodiscard]] bool add_chunk(std::uint64_t bytes);
    [[nodiscard]] std::unexpected<Error> failed(CUresult result, std::string_view what) const {
        return std::unexpected(
            cuda_error(result, fmt::format("GPU {}: cannot {}", gpu_->device().gpu, what)));
    }

    std::shared_ptr<const Gpu> gpu_;
    unsigned waves_;
    DeviceBuffer counters_;
    std::vector<Part> parts_;
    std::vector<Chunk> chunks_;
    std::size_t current_ = 0;
    std::uint64_t allocated_ = 0;
    std::uint64_t bytes_max_ = 0;
    Size size_;
};

Result<void> GpuDifference::make_counters() {
    auto made = DeviceBuffer::make(gpu_, sizeof(DeltaCounters));
    if (!made) return std::unexpected(made.error());
    counters_ = std::move(*made);
    return {};
}

Result<void> GpuDifference::add_part(const std::vector<CopyJob>& jobs) {
    Tables tables;
    for (const CopyJob& job : jobs) {
        if (const std::string fault = fault_of(job); !fault.empty()) {
            return refused(Errc::invalid_argument, "a part's differences: " + fault);
        }
        tables.add(job, delta_tile_bytes);
    }
    std::vector<Tile>& tiles = tables.tiles;
    tiles.insert(tiles.end(), tables.view_tiles.begin(), tables.view_tiles.end());
    const auto upload = [&](DeviceBuffer& to, const auto& rows) -> Result<void> {
        auto made = DeviceBuffer::holding(gpu_, std::as_bytes(std::span(rows)));
        if (!made) return std::unexpected(made.error());
        to = std::move(*made);
        return {};
    };
    Part part;
    part.tile_count = tiles.size();
    part.bytes = bytes_of(jobs);
    for (const CopyJob& job : jobs) part.elements += job.elements;
    auto done = upload(part.jobs, tables.jobs);
    if (done) done = upload(part.layouts, tables.layouts);
    if (done) done = upload(part.tiles, tiles);
    if (done) done = upload(part.heads, std::vector<DeltaHead>(tiles.size()));
    if (done) parts_.push_back(std::move(part));
    return done;
}

void GpuDifference::clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) {
    const std::uint64_t keep = std::min(bytes_max, std::max(size_.bytes, bytes_kept));
    while (!chunks_.empty() && allocated_ > keep) {
        allocated_ -= chunks_.back().bytes;
        chunks_.pop_back();
    }
    for (Chunk& chunk : chunks_) chunk.used = 0;
    for (Part& part : parts_) part.listed = false;
    current_ = 0;
    bytes_max_ = bytes_max;
    size_ = {};
}

// Exactly so many bytes, or more; false if the bound, or the GPU, has no more.
bool GpuDifference::add_chunk(std::uint64_t bytes) {
    const std::uint64_t left = bytes_max_ - std::min(bytes_max_, allocated_);
    const std::uint64_t size = std::min(left, std::max(bytes, chunk_bytes_min));
    if (size == 0 || size < std::min(bytes, chunk_bytes_min)) return false;
    auto memory = DeviceBuffer::make(gpu_, size);
    if (!memory) return false;
    chunks_.push_back({.memory = std::move(*memory), .bytes = size});
    allocated_ += size;
    return true;
}

DeltaArgs GpuDifference::args_for(const Part& part, const std::byte* slot) const {
    DeltaArgs args{};
    args.tables.tiles = std::bit_cast<const Tile*>(part.tiles.address());
    args.tables.jobs = std::bit_cast<const DeviceJob*>(part.jobs.address());
    args.tables.layouts = std::bit_cast<const Layout*>(part.layouts.address());
    args.tables.tile_count = part.tile_count;
    args.tables.tile_bytes = delta_tile_bytes;
    args.tables.slot = reinterpret_cast<std::uint64_t>(slot);
    args.heads = std::bit_cast<DeltaHead*>(part.heads.address());
    args.counters = std::bit_cast<DeltaCounters*>(counters_.address());
    return args;
}

Result<DeltaCounters> GpuDifference::compare_into(const Part& part, const std::byte* slot,
                                                  const Chunk& chunk, CUstream queue) {
    const Driver& api = gpu_->api();
    DeltaCounters counters{};
    CUresult result = api.cuMemsetD8Async(counters_.address(), 0, sizeof counters, queue);
    if (result != CUDA_SUCCESS) return failed(result, "zero the counters of a list");
    DeltaArgs args = args_for(part, slot);
    args.memory = chunk.memory.address() + chunk.used;
    args.memory_bytes = chunk.bytes - chunk.used;
    args.tile_count = part.tile_count * (block_threads / warp_lanes);
    auto launched = gpu_->launch(Kernel::delta_compare, args, waves_, queue);
    if (!launched) return std::unexpected(launched.error());
    auto reached = gpu_->wait(queue, Deadline::after_ms(wait_ms));
    if (!reached) return std::unexpected(reached.error());
    result = api.cuMemcpyDtoHAsync(&counters, counters_.address(), sizeof counters, queue);
    if (result == CUDA_SUCCESS) result = api.cuStreamSynchronize(queue);
    if (result != CUDA_SUCCESS) return failed(result, "read the counters of a list");
    return counters;
}

Result<bool> GpuDifference::compare(std::size_t number, const std::byte* slot, Stream stream) {
    Part& part = parts_[number];
    size_.elements += part.elements;
    const Context::Scope scope(gpu_->context());
    const auto queue = gpu_->stream_behind(stream);
    if (!queue) return std::unexpected(queue.error());
    // The whole part again where a chunk had too little left: its slot is still there.
    for (std::uint64_t wanted = chunk_bytes_min;;) {
        if (current_ == chunks_.size() && !add_chunk(wanted)) break;
        Chunk& chunk = chunks_[current_];
        const auto counters = compare_into(part, slot, chunk, *queue);
        if (!counters) return std::unexpected(counters.error());
        if (counters->used <= chunk.bytes - chunk.used) {
            chunk.used += counters->used;
            size_.bytes += counters->used;
            size_.changed += counters->changed;
            part.listed = true;
            return true;
        }
        wanted = counters->used;
        current_++;
    }
    current_ = chunks_.empty() ? 0 : chunks_.size() - 1;
    return false;
}

Result<void> GpuDifference::swap(std::size_t number, Stream stream) {
    const Part& part = parts_[number];
    if (!part.listed) return {};
    const Context::Scope scope(gpu_->context());
    const auto queue = gpu_->stream_behind(stream);
    if (!queue) return std::unexpected(queue.error());
    DeltaArgs args = args_for(part, nullptr);
    args.tile_count = part.tile_count;
    auto launched = gpu_->launch(Kernel::delta_exchange, args, 2 * waves_, *queue);
    if (!launched) return launched;
    return gpu_->wait(*queue, Deadline::after_ms(wait_ms));
}

}  // namespace

Result<std::unique_ptr<device::Difference>> make_difference(
    std::shared_ptr<const Gpu> gpu, const std::vector<std::vector<CopyJob>>& parts,
    unsigned waves) {
    auto made = std::make_unique<GpuDifference>(std::move(gpu), waves);
    if (auto counters = made->make_counters(); !counters) {
        return std::unexpected(counters.error());
    }
    for (const auto& jobs : parts) {
        if (auto added = made->add_part(jobs); !added) return std::unexpected(added.error());
    }
    return made;
}

}  // namespace rollring::cuda
