#include "plan.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "job_tables.hpp"

namespace rollring::cuda {
namespace {

using device::CopyJob;

// Few, so that copies within the GPU have the rest: their 16-byte loads under way are twice as many
// as a link has.
constexpr std::uint64_t link_blocks = 128;

Kernel pack_kernel(Features features, bool sums) {
    switch (features) {
        case Features::plain:
            return sums ? Kernel::pack_plain_sums : Kernel::pack_plain;
        case Features::casts:
            return sums ? Kernel::pack_casts_sums : Kernel::pack_casts;
        case Features::anything:
            break;
    }
    return sums ? Kernel::pack_anything_sums : Kernel::pack_anything;
}

template <class T>
Result<DeviceBuffer> upload(const std::shared_ptr<const Gpu>& gpu, const std::vector<T>& rows) {
    return DeviceBuffer::holding(gpu, std::as_bytes(std::span(rows)));
}

class GpuPlan : public device::CopyPlan {
  public:
    GpuPlan(std::shared_ptr<const Gpu> gpu, const Tuning& tuning)
        : gpu_(std::move(gpu)), tuning_(tuning) {}

    Result<void> lay_down(Tables tables);
    Result<void> pack(std::byte* slot, std::optional<std::uint64_t> sums_offset,
                      Stream stream) override;
    Result<void> pack_one(std::size_t job, const void* tensor, std::byte* slot,
                          std::optional<std::uint64_t> sums_offset, Stream stream) override;
    Result<void> unpack(const std::byte* slot, Stream stream) override;
    Result<std::optional<std::size_t>> verify(const std::byte* slot, std::uint64_t sums_offset,
                                              Deadline deadline) override;

  private:
    [[nodiscard]] Result<KernelArgs> args_for(const std::byte* slot, bool of_all_tensors,
                                              std::uint64_t sums_offset) const;
    [[nodiscard]] Result<KernelArgs> pack_args(const std::byte* slot, bool of_all_tensors,
                                               std::uint64_t sums_offset) const {
        if (!views_) return args_for(slot, of_all_tensors, sums_offset);
        return refused(Errc::invalid_argument, "a plan with views can only unpack");
    }
    Result<void> launch_pack(Features features, bool sums, const KernelArgs& args, Stream given,
                             CUstream queue) const;
    // One launch after the other.
    Result<void> launch(Kernel kernel, const KernelArgs& args, CUstream queue,
                        std::uint64_t blocks = 0) const;
    Result<void> zero(std::uint64_t address, std::uint64_t bytes, CUstream stream) const;

    std::shared_ptr<const Gpu> gpu_;
    Tuning tuning_;
    std::vector<HostJob> jobs_;  // and one more: the end of the last one's tiles
    Features features_ = Features::plain;
    bool casts_ = false;
    bool views_ = false;
    std::uint64_t view_tiles_ = 0;    // behind those of other jobs
    std::uint64_t launch_tiles_ = 1;  // the most at once
    std::optional<std::size_t> without_address_;
    DeviceBuffer job_table_;
    DeviceBuffer layout_table_;
    DeviceBuffer tile_table_;
    DeviceBuffer own_sums_;  // made by the first verify
};

Result<void> GpuPlan::lay_down(Tables tables) {
    auto jobs = upload(gpu_, tables.jobs);
    if (!jobs) return std::unexpected(jobs.error());
    auto layouts = upload(gpu_, tables.layouts);
    if (!layouts) return std::unexpected(layouts.error());
    const std::uint64_t first_view_tile = tables.tiles.size();
    const std::uint64_t launches = std::max<std::uint64_t>(
        1, (tables.bytes + tuning_.launch_bytes - 1) / tuning_.launch_bytes);
    launch_tiles_ = std::max<std::uint64_t>(1, (first_view_tile + launches - 1) / launches);
    view_tiles_ = tables.view_tiles.size();
    tables.tiles.insert(tables.tiles.end(), tables.view_tiles.begin(), tables.view_tiles.end());
    auto tiles = upload(gpu_, tables.tiles);
    if (!tiles) return std::unexpected(tiles.error());
    job_table_ = std::move(*jobs);
    layout_table_ = std::move(*layouts);
    tile_table_ = std::move(*tiles);
    jobs_ = std::move(tables.host_jobs);
    jobs_.push_back({first_view_tile, 0, Features::plain});
    features_ = tables.features;
    casts_ = tables.casts;
    views_ = tables.views;
    without_address_ = tables.without_address;
    return {};
}

Result<KernelArgs> GpuPlan::args_for(const std::byte* slot, bool of_all_tensors,
                                     std::uint64_t sums_offset) const {
    const auto address = reinterpret_cast<std::uint64_t>(slot);
    if (address == 0 || address % device::piece_alignment != 0) {
        return refused(Errc::invalid_argument,
                       fmt::format("a slot at {:#x}, which is not aligned to {} B", address,
                                   device::piece_alignment));
    }
    if (sums_offset % sizeof(std::uint64_t) != 0) {
        return refused(Errc::invalid_argument,
                       fmt::format("checksums at offset {} of a slot", sums_offset));
    }
    if (of_all_tensors && without_address_) {
        return refused(Errc::invalid_argument,
                       fmt::format("job {} of the plan has no address: it can only be packed by "
                                   "itself, from a given one",
                                   *without_address_));
    }
    KernelArgs args{};
    args.tiles = std::bit_cast<const Tile*>(tile_table_.address());
    args.jobs = std::bit_cast<const DeviceJob*>(job_table_.address());
    args.layouts = std::bit_cast<const Layout*>(layout_table_.address());
    args.tile_count = jobs_.back().first_tile;
    args.tile_bytes = tuning_.tile_bytes;
    args.slot = address;
    return args;
}

Result<void> GpuPlan::zero(std::uint64_t address, std::uint64_t bytes, CUstream stream) const {
    if (bytes == 0) return {};
    const CUresult result = gpu_->api().cuMemsetD8Async(address, 0, bytes, stream);
    if (result == CUDA_SUCCESS) return {};
    return std::unexpected(
        cuda_error(result, fmt::format("GPU {}: cannot zero the checksums", gpu_->device().gpu)));
}

Result<void> GpuPlan::launch(Kernel kernel, const KernelArgs& args, CUstream queue,
                             std::uint64_t blocks) const {
    KernelArgs some = args;
    for (std::uint64_t left = args.tile_count; left > 0; left -= some.tile_count) {
        some.tile_count = std::min(left, launch_tiles_);
        const auto launched = gpu_->launch(kernel, some, tuning_.waves, queue, blocks);
        if (!launched) return launched;
        some.tiles += some.tile_count;
    }
    return {};
}

// The caller may write to its tensors in the same stream at once.
Result<void> GpuPlan::launch_pack(Features features, bool sums, const KernelArgs& args,
                                  Stream given, CUstream queue) const {
    const auto launched = launch(pack_kernel(features, sums), args, queue);
    return launched ? gpu_->hold_default_stream(given) : launched;
}

Result<void> GpuPlan::pack(std::byte* slot, std::optional<std::uint64_t> sums_offset,
                           Stream stream) {
    auto args = pack_args(slot, true, sums_offset.value_or(0));
    if (!args) return std::unexpected(args.error());
    const Context::Scope scope(gpu_->context());
    const auto behind = gpu_->stream_behind(stream);
    if (!behind) return std::unexpected(behind.error());
    CUstream queue = *behind;
    if (sums_offset) {
        args->sums = args->slot + *sums_offset;
        const auto zeroed = zero(args->sums, (jobs_.size() - 1) * sizeof(std::uint64_t), queue);
        if (!zeroed) return zeroed;
    }
    return launch_pack(features_, sums_offset.has_value(), *args, stream, queue);
}

Result<void> GpuPlan::pack_one(std::size_t job, const void* tensor, std::byte* slot,
                               std::optional<std::uint64_t> sums_offset, Stream stream) {
    if (job + 1 >= jobs_.size()) {
        return refused(Errc::invalid_argument,
                       fmt::format("job {} of a plan of {}", job, jobs_.size() - 1));
    }
    auto args = pack_args(slot, false, sums_offset.value_or(0));
    if (!args) return std::unexpected(args.error());
    args->tile_count = jobs_[job + 1].first_tile - jobs_[job].first_tile;
    args->tiles += jobs_[job].first_tile;
    if (tensor == nullptr && args->tile_count > 0) {
        return refused(Errc::invalid_argument,
                       fmt::format("job {} is to be packed from a null pointer", job));
    }
    args->tensor = reinterpret_cast<std::uint64_t>(tensor) + jobs_[job].first_byte;
    const Context::Scope scope(gpu_->context());
    const auto behind = gpu_->stream_behind(stream);
    if (!behind) return std::unexpected(behind.error());
    CUstream queue = *behind;
    if (sums_offset) {
        args->sums = args->slot + *sums_offset;
        const std::uint64_t own = args->sums + job * sizeof(std::uint64_t);
        if (auto zeroed = zero(own, sizeof(std::uint64_t), queue); !zeroed) return zeroed;
    }
    return launch_pack(jobs_[job].features, sums_offset.has_value(), *args, stream, queue);
}

Result<void> GpuPlan::unpack(const std::byte* slot, Stream stream) {
    if (casts_) return refused(Errc::invalid_argument, "a plan with casts can only pack");
    auto args = args_for(slot, true, 0);
    if (!args) return std::unexpected(args.error());
    const Context::Scope scope(gpu_->context());
    const Kernel plain = tuning_.over_link ? Kernel::unpack_over_link : Kernel::unpack_plain;
    const Kernel kernel = features_ == Features::plain ? plain : Kernel::unpack_anything;
    const auto behind = gpu_->stream_behind(stream);
    if (!behind) return std::unexpected(behind.error());
    const std::uint64_t blocks = tuning_.over_link ? link_blocks : 0;
    auto launched = launch(kernel, *args, *behind, blocks);
    if (!launched || view_tiles_ == 0) return launched;
    args->tiles += args->tile_count;
    args->tile_count = view_tiles_;
    return gpu_->launch(Kernel::unpack_views, *args, tuning_.waves, *behind, blocks);
}

Result<std::optional<std::size_t>> GpuPlan::verify(const std::byte* slot, std::uint64_t sums_offset,
                                                   Deadline deadline) {
    auto args = pack_args(slot, false, sums_offset);
    if (!args) return std::unexpected(args.error());
    const std::size_t count = jobs_.size() - 1;
    if (count == 0) return std::nullopt;
    const std::uint64_t bytes = count * sizeof(std::uint64_t);
    if (own_sums_.address() == 0) {
        auto made = DeviceBuffer::make(gpu_, bytes);
        if (!made) return std::unexpected(made.error());
        own_sums_ = std::move(*made);
    }
    const Context::Scope scope(gpu_->context());
    CUstream queue = gpu_->stream({});
    args->sums = own_sums_.address();
    if (auto zeroed = zero(args->sums, bytes, queue); !zeroed) {
        return std::unexpected(zeroed.error());
    }
    const auto launched = gpu_->launch(Kernel::checksum, *args, tuning_.waves, queue);
    if (!launched) return std::unexpected(launched.error());
    // Before anything is copied: late work writes only into this plan's memory.
    if (auto reached = gpu_->wait(queue, deadline); !reached) {
        return std::unexpected(reached.error());
    }
    std::vector<std::uint64_t> ours(count);
    std::vector<std::uint64_t> theirs(count);
    const Driver& api = gpu_->api();
    const CUdeviceptr sent = args->slot + sums_offset;
    CUresult result =
        api.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(ours.data()), args->sums, bytes, queue);
    if (result == CUDA_SUCCESS) {
        result =
            api.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(theirs.data()), sent, bytes, queue);
    }
    // Waits even after an error: copies may be under way into memory that is about to be freed.
    const CUresult waited = api.cuStreamSynchronize(queue);
    if (result == CUDA_SUCCESS) result = waited;
    if (result != CUDA_SUCCESS) {
        return std::unexpected(cuda_error(
            result, fmt::format("GPU {}: cannot verify {} checksums", gpu_->device().gpu, count)));
    }
    const auto differs = std::ranges::mismatch(ours, theirs).in1;
    if (differs == ours.end()) return std::nullopt;
    return static_cast<std::size_t>(differs - ours.begin());
}

}  // namespace

Result<std::unique_ptr<device::CopyPlan>> make_plan(std::shared_ptr<const Gpu> gpu,
                                                    const std::vector<CopyJob>& jobs,
                                                    const Tuning& tuning) {
    if (tuning.tile_bytes < tile_bytes_min || tuning.tile_bytes % 256 != 0 ||
        tuning.tile_bytes > 1u << 30) {
        return refused(Errc::invalid_argument, fmt::format("tiles of {} B", tuning.tile_bytes));
    }
    if (jobs.size() > std::numeric_limits<std::uint32_t>::max() / 2) {
        return refused(Errc::invalid_argument, fmt::format("{} jobs in one plan", jobs.size()));
    }
    Tables tables;
    tables.jobs.reserve(jobs.size());
    tables.host_jobs.reserve(jobs.size() + 1);
    for (std::size_t i = 0; i < jobs.size(); i++) {
        const std::string fault = fault_of(jobs[i]);
        if (!fault.empty())
            return refused(Errc::invalid_argument, fmt::format("job {} of the plan: {}", i, fault));
        tables.add(jobs[i], tuning.tile_bytes);
    }
    auto plan = std::make_unique<GpuPlan>(std::move(gpu), tuning);
    if (auto laid = plan->lay_down(std::move(tables)); !laid) return std::unexpected(laid.error());
    return plan;
}

}  // namespace rollring::cuda
