#include "mover.hpp"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "callbacks.hpp"
#include "gpu_difference.hpp"
#include "plan.hpp"

namespace rollring::cuda {
namespace {

struct Range {
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
};

class GpuMover : public device::Mover {
  public:
    explicit GpuMover(std::shared_ptr<const Gpu> gpu) : gpu_(gpu), callbacks_(std::move(gpu)) {}

    [[nodiscard]] GpuUuid gpu() const override { return gpu_->context().uuid(); }
    Result<void> check_address(const void* address, std::uint64_t bytes) override;
    std::optional<std::size_t> find_absent(std::span<const device::MemoryPlace> places) override;
    Result<std::unique_ptr<device::CopyPlan>> plan(std::vector<device::CopyJob> jobs) override {
        if (!over_link_) return make_plan(gpu_, jobs);
        return make_plan(gpu_, jobs, {.tile_bytes = 16384, .over_link = true});
    }
    Result<std::unique_ptr<device::Difference>> difference(
        std::vector<std::vector<device::CopyJob>> parts) override {
        return make_difference(gpu_, parts, {.share = share_});
    }
    void take_share(double share) override { share_ = share; }
    void copy_over_link(bool over_link) override { over_link_ = over_link; }
    Result<void> when_reached(Stream stream, device::Reached reached, void* context) override;
    Result<void> wait(Stream stream, Deadline deadline) override;
    Result<void> health() override;

  private:
    template <class T>
    CUresult look_up(T& value, CUpointer_attribute which, CUdeviceptr address) const {
        return gpu_->api().cuPointerGetAttribute(&value, which, address);
    }
    // Whether all work is done that is queued on the stream, or on the default one with ours.
    [[nodiscard]] bool is_idle(Stream stream) const;
    // Empty if no memory is mapped.
    [[nodiscard]] std::optional<Range> mapped_at(CUdeviceptr address) const;
    [[nodiscard]] Result<void> check_place(CUdeviceptr address) const;
    // The allocation around an address, or one of several adjacent mappings.
    [[nodiscard]] Result<Range> range_of(CUdeviceptr address) const;
    [[nodiscard]] std::unexpected<Error> unusable(CUdeviceptr address, std::string_view why) const {
        return refused(Errc::invalid_argument,
                       fmt::format("address {:#x} cannot be used by GPU {}: {}", address,
                                   gpu_->device().gpu, why));
    }

    std::shared_ptr<const Gpu> gpu_;
    Callbacks callbacks_;
    double share_ = 1;
    bool over_link_ = false;
};

// Whether our GPU can reach one address.
Result<void> GpuMover::check_place(CUdeviceptr address) const {
    unsigned kind = 0;
    if (look_up(kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS || kind == 0) {
        return unusable(address,
                        "it is not memory that CUDA knows; move the tensor to the GPU, or pin it");
    }
    unsigned managed = 0;
    if (look_up(managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == CUDA_SUCCESS &&
        managed != 0) {
        return {};
    }
    if (kind == CU_MEMORYTYPE_HOST) {
        CUdeviceptr seen = 0;
        const CUresult result = look_up(seen, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address);
        if (result == CUDA_SUCCESS && seen == address) return {};
        return unusable(address,
                        "it is pinned host memory without a GPU mapping at the same address");
    }
    if (kind != CU_MEMORYTYPE_DEVICE && kind != CU_MEMORYTYPE_UNIFIED) {
        return unusable(address, "it is a CUDA array");
    }
    int ordinal = 0;
    CUdevice owner = 0;
    if (look_up(ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) != CUDA_SUCCESS ||
        gpu_->api().cuDeviceGet(&owner, ordinal) != CUDA_SUCCESS) {
        return unusable(address, "the driver does not report its GPU");
    }
    if (owner != gpu_->context().device()) {
        return unusable(address, fmt::format("it is on GPU {}", ordinal));
    }
    return {};
}

Result<Range> GpuMover::range_of(CUdeviceptr address) const {
    Range range;
    CUresult result = gpu_->api().cuMemGetAddressRange(&range.start, &range.bytes, address);
    if (result != CUDA_SUCCESS) {  // registered host memory
        result = look_up(range.start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address);
        if (result == CUDA_SUCCESS) {
            result = look_up(range.bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
        }
    }
    if (result == CUDA_SUCCESS && range.bytes > 0 && address - range.start < range.bytes) {
        return range;
    }
    return unusable(address, "the driver knows no allocation there");
}

Result<void> GpuMover::check_address(const void* address, std::uint64_t bytes) {
    const Context::Scope scope(gpu_->context());
    const auto start = reinterpret_cast<CUdeviceptr>(address);
    if (bytes == 0) return {};
    if (start == 0) return unusable(start, "it is null");
    if (start + bytes < start) return unusable(start, "the tensor does not end");
    // Virtual memory (torch's expandable segments) has many adjacent mappings, and a tensor may
    // span several. An allocation that cuIpcGetMemHandle knows is one piece: a tensor ends within
    // it.
    unsigned whole = 0;
    if (look_up(whole, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, start) != CUDA_SUCCESS) {
        whole = 0;
    }
    for (CUdeviceptr at = start;;) {
        if (auto placed = check_place(at); !placed) return placed;
        const auto range = range_of(at);
        if (!range) return std::unexpected(range.error());
        at = range->start + range->bytes;
        if (at - start >= bytes) return {};
        if (whole != 0) {
            return unusable(start, fmt::format("its allocation has {} B from there on, of {}",
                                               at - start, bytes));
        }
    }
}

std::optional<Range> GpuMover::mapped_at(CUdeviceptr address) const {
    unsigned mapped = 0;
    const CUresult result = look_up(mapped, CU_POINTER_ATTRIBUTE_MAPPED, address);
    if (result != CUDA_SUCCESS || mapped == 0) {
        // Pinned host memory exists as long as CUDA knows it.
        unsigned kind = 0;
        const CUresult known = look_up(kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
        if (known != CUDA_SUCCESS || kind != CU_MEMORYTYPE_HOST) return {};
    }
    const auto range = range_of(address);
    return range ? *range : Range{.start = address, .bytes = 1};
}

// A mapping is made and removed as a whole, so one check covers all tensors in it.
std::optional<std::size_t> GpuMover::find_absent(std::span<const device::MemoryPlace> places) {
    const Context::Scope scope(gpu_->context());
    Range known;
    for (std::size_t i = 0; i < places.size(); i++) {
        const auto begin = reinterpret_cast<CUdeviceptr>(places[i].address);
        for (const CUdeviceptr at : {begin, begin + places[i].bytes - 1}) {
            if (at - known.start < known.bytes) continue;
            const auto mapped = mapped_at(at);
            if (!mapped) return i;
            known = *mapped;
        }
    }
    return {};
}

bool GpuMover::is_idle(Stream stream) const {
    const Driver& api = gpu_->api();
    return api.cuStreamQuery(gpu_->stream(stream)) == CUDA_SUCCESS &&
           (stream.handle != nullptr || api.cuStreamQuery(CU_STREAM_LEGACY) == CUDA_SUCCESS);
}

Result<void> GpuMover::when_reached(Stream stream, device::Reached reached, void* context) {
    const Context::Scope scope(gpu_->context());
    if (is_idle(stream)) {  // another thread would only be later
        reached(context);
        return {};
    }
    // A caller without a stream may have used the default one.
    const std::array<CUstream, 2> streams{gpu_->stream(stream), CU_STREAM_LEGACY};
    return callbacks_.add(std::span(streams).first(stream.handle == nullptr ? 2 : 1), reached,
                          context);
}

Result<void> GpuMover::wait(Stream stream, Deadline deadline) {
    const Context::Scope scope(gpu_->context());
    if (auto reached = gpu_->wait(gpu_->stream(stream), deadline); !reached) return reached;
    return callbacks_.wait(deadline);
}

Result<void> GpuMover::health() {
    const Context::Scope scope(gpu_->context());
    const CUresult result = gpu_->api().cuStreamQuery(gpu_->stream({}));
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) return {};
    return gpu_->stream_failure(result);
}

}  // namespace

Result<std::unique_ptr<device::Mover>> make_mover(std::shared_ptr<const Gpu> gpu) {
    return std::make_unique<GpuMover>(std::move(gpu));
}

}  // namespace rollring::cuda
