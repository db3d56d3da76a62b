// A GPU that gathers: one kernel works through each table. It reads tables and records in pinned
// memory, because a copy of the table to the GPU would be one more thing to wait for.

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "backends.hpp"
#include "gpu_gather.hpp"
#include "marks.hpp"

namespace rollring::cuda {
namespace {

using device::GatherArgs;
using device::GatherDevice;
using device::Staging;
using device::TileTable;

// Pinned memory of our own that the GPU reads.
class PinnedBlock {
  public:
    static Result<PinnedBlock> make(std::shared_ptr<const Gpu> gpu, std::uint64_t bytes) {
        PinnedBlock made;
        void* data = nullptr;
        CUresult result = gpu->api().cuMemHostAlloc(
            &data, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
        if (result == CUDA_SUCCESS) {
            made.data_ = static_cast<std::byte*>(data);
            result = gpu->api().cuMemHostGetDevicePointer(&made.address_, data, 0);
        }
        made.gpu_ = std::move(gpu);
        made.bytes_ = bytes;
        if (result == CUDA_SUCCESS) return made;
        Error error =
            cuda_error(result, fmt::format("GPU {}: cannot allocate {} B of pinned memory",
                                           made.gpu_->device().gpu, bytes));
        error.code = Errc::host_memory;
        return std::unexpected(std::move(error));
    }
    PinnedBlock(PinnedBlock&& other) noexcept
        : gpu_(std::move(other.gpu_)),
          data_(std::exchange(other.data_, nullptr)),
          address_(other.address_),
          bytes_(other.bytes_) {}
    PinnedBlock& operator=(PinnedBlock&& other) noexcept {
        std::swap(gpu_, other.gpu_);
        std::swap(data_, other.data_);
        std::swap(address_, other.address_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~PinnedBlock() {
        if (data_ == nullptr) return;
        const Context::Scope scope(gpu_->context());
        gpu_->api().cuMemFreeHost(data_);
    }

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::uint64_t address() const { return address_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  private:
    PinnedBlock() = default;
    std::shared_ptr<const Gpu> gpu_;
    std::byte* data_ = nullptr;
    CUdeviceptr address_ = 0;
    std::uint64_t bytes_ = 0;
};

// A caller without a stream reads the result on the default one.
CUstream queue_of(Stream stream) {
    return stream.handle == nullptr ? CU_STREAM_LEGACY : static_cast<CUstream>(stream.handle);
}

class GpuGather : public GatherDevice {
  public:
    GpuGather(std::shared_ptr<const Gpu> gpu, const GatherTuning& tuning)
        : gpu_(std::move(gpu)), tuning_(tuning), marks_(gpu_) {}
    ~GpuGather() override { marks_.wait_all(); }

    [[nodiscard]] std::uint64_t part_bytes(std::uint64_t all_bytes) const override {
        if (tuning_.part_bytes != 0) return tuning_.part_bytes;
        constexpr std::uint64_t least = 8192;
        constexpr std::uint64_t most = 32768;
        constexpr std::uint64_t warps = 4096;  // about as many as run on an H100
        return std::clamp(std::bit_floor(all_bytes / warps + 1), least, most);
    }
    Result<std::uint64_t> pin(const std::byte* data, std::uint64_t bytes) override;
    void unpin(const std::byte* data) override {
        const Context::Scope scope(gpu_->context());
        gpu_->api().cuMemHostUnregister(const_cast<std::byte*>(data));
    }
    Result<Staging> stage(std::uint64_t bytes) override;
    Result<void> run(const TileTable& table, Stream stream) override;
    Result<void> end(Stream stream) override;
    // A failure shows when memory is taken next.
    [[nodiscard]] bool idle() override {
        const auto there = marks_.reached(last_mark_);
        return there && *there;
    }
    Result<std::uint64_t> mark(Stream stream) override {
        const Context::Scope scope(gpu_->context());
        return marks_.set(queue_of(stream));
    }
    Result<bool> reached(std::uint64_t mark) override { return marks_.reached(mark); }
    Result<void> wait(std::uint64_t mark, Deadline deadline) override {
        return marks_.wait(mark, deadline);
    }

  private:
    // Empty again once all marks up to its own are reached, because tables go to any stream;
    // `open`: no mark is behind the tables that read it yet.
    struct Block {
        PinnedBlock memory;
        std::uint64_t mark = 0;
        std::uint64_t used = 0;
        bool open = false;
    };
    Result<Block*> block_for(std::uint64_t bytes);
    Result<GatherArgs> lay_down(const TileTable& table);

    std::shared_ptr<const Gpu> gpu_;
    GatherTuning tuning_;
    Marks marks_;
    std::vector<Block> blocks_;
    std::size_t last_ = 0;          // the block that memory was last taken from
    std::uint64_t open_bytes_ = 0;  // taken since the last mark
    std::uint64_t last_mark_ = 0;
};

Result<std::uint64_t> GpuGather::pin(const std::byte* data, std::uint64_t bytes) {
    if (gpu_->attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) == 0) {
        return refused(Errc::unsupported,
                       fmt::format("GPU {}: its driver cannot register read-only host memory",
                                   gpu_->device().gpu));
    }
    const Context::Scope scope(gpu_->context());
    const Driver& api = gpu_->api();
    auto* memory = const_cast<std::byte*>(data);
    CUresult result = api.cuMemHostRegister(
        memory, bytes,
        CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_READ_ONLY);
    CUdeviceptr address = 0;
    if (result == CUDA_SUCCESS) result = api.cuMemHostGetDevicePointer(&address, memory, 0);
    if (result == CUDA_SUCCESS) return address;
    Error error = cuda_error(
        result, fmt::format("GPU {}: cannot register {} B of a lane", gpu_->device().gpu, bytes));
    if (error.code == Errc::out_of_device_memory) {  // pinnable memory is short
        error.code = Errc::host_memory;
        error.message += "; is there a limit on locked memory (ulimit -l)?";
    }
    return std::unexpected(std::move(error));
}

Result<GpuGather::Block*> GpuGather::block_for(std::uint64_t bytes) {
    const auto fits = [&](const Block& block) {
        return block.memory.bytes() - block.used >= bytes;
    };
    if (last_ < blocks_.size() && fits(blocks_[last_])) return &blocks_[last_];
    for (Block& block : blocks_) {
        if (!block.open && block.mark != 0) {
            const auto there = marks_.all_reached(block.mark);
            if (!there) return std::unexpected(there.error());
            if (*there) block.mark = block.used = 0;
        }
        if (fits(block)) {
            last_ = static_cast<std::size_t>(&block - blocks_.data());
            return &block;
        }
    }
    constexpr std::uint64_t block_bytes = std::uint64_t{8} << 20;
    const Context::Scope scope(gpu_->context());
    auto memory = PinnedBlock::make(gpu_, std::max(bytes, block_bytes));
    if (!memory) return std::unexpected(memory.error());
    last_ = blocks_.size();
    blocks_.push_back({.memory = std::move(*memory)});
    return &blocks_.back();
}

Result<Staging> GpuGather::stage(std::uint64_t bytes) {
    constexpr std::uint64_t alignment = 128;
    bytes = (bytes + alignment - 1) / alignment * alignment;
    const auto found = block_for(bytes);
    if (!found) return std::unexpected(found.error());
    Block& block = **found;
    block.open = true;
    open_bytes_ += bytes;
    const std::uint64_t at = std::exchange(block.used, block.used + bytes);
    return Staging{block.memory.data() + at, block.memory.address() + at};
}

// Each array is aligned to 16.
Result<GatherArgs> GpuGather::lay_down(const TileTable& table) {
    GatherArgs args = table.args();
    if (table.tile_count == 0) return args;
    constexpr std::uint64_t slack = std::uint64_t{2} * 16;
    const auto memory = stage(table.tile_count * sizeof(device::GatherTile) +
                              table.values.size() * sizeof(std::uint64_t) + slack);
    if (!memory) return std::unexpected(memory.error());
    std::uint64_t used = 0;
    const auto put = [&]<class T>(const std::vector<T>& rows, std::size_t count) {
        const std::uint64_t at = used;
        const std::uint64_t bytes = count * sizeof(T);
        if (bytes != 0) std::memcpy(memory->data + at, rows.data(), bytes);
        used += (bytes + 15) / 16 * 16;
        return std::bit_cast<const T*>(memory->address + at);
    };
    args.tiles = put(table.tiles, table.tile_count);
    args.values = put(table.values, table.values.size());
    return args;
}

Result<void> GpuGather::run(const TileTable& table, Stream stream) {
    if (table.entries() == 0) return {};
    const Context::Scope scope(gpu_->context());
    CUstream queue = queue_of(stream);
    const auto args = lay_down(table);
    if (!args) return std::unexpected(args.error());
    if (auto launched = gpu_->launch(Kernel::gather, *args, 1, queue, tuning_.blocks); !launched) {
        return launched;
    }
    constexpr std::uint64_t many = std::uint64_t{4} << 20;  // for one gather to wait for
    return open_bytes_ < many ? Result<void>() : end(stream);
}

Result<void> GpuGather::end(Stream stream) {
    if (open_bytes_ == 0) return {};
    const Context::Scope scope(gpu_->context());
    const auto mark = marks_.set(queue_of(stream));
    if (!mark) return std::unexpected(mark.error());
    for (Block& block : blocks_) {
        if (std::exchange(block.open, false)) block.mark = *mark;
    }
    open_bytes_ = 0;
    last_mark_ = *mark;
    return {};
}

}  // namespace

std::unique_ptr<GatherDevice> make_gather(std::shared_ptr<const Gpu> gpu,
                                          const GatherTuning& tuning) {
    return std::make_unique<GpuGather>(std::move(gpu), tuning);
}

Result<std::unique_ptr<GatherDevice>> open_gather(Device device) {
    auto gpu = Gpu::open(device);
    if (!gpu) return std::unexpected(gpu.error());
    return make_gather(std::move(*gpu));
}

}  // namespace rollring::cuda
