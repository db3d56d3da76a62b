// Ranks whose tensors lie on fake GPUs, where engines read them. Stands in for lib/cuda.

#include "../weights/exposed_shard.hpp"
#include "direct_memory.hpp"
#include "gpus.hpp"
#include "host_mover.hpp"
#include "sharded_memory.hpp"
#include "support/process.hpp"

namespace rollring {
namespace test {
namespace {

constexpr Device fake_gpus[] = {{0}, {1}};

GpuUuid uuid(std::int32_t gpu) {
    GpuUuid made;
    made.bytes.fill(static_cast<std::uint8_t>(gpu + 1));
    return made;
}

// Copies of an engine last as long as on a device, so that others die meanwhile.
class SlowPlan : public device::CopyPlan {
  public:
    explicit SlowPlan(std::unique_ptr<device::CopyPlan> plan) : plan_(std::move(plan)) {}
    Result<void> pack(std::byte* slot, std::optional<std::uint64_t> sums, Stream stream) override {
        return plan_->pack(slot, sums, stream);
    }
    Result<void> pack_one(std::size_t job, const void* tensor, std::byte* slot,
                          std::optional<std::uint64_t> sums, Stream stream) override {
        return plan_->pack_one(job, tensor, slot, sums, stream);
    }
    Result<void> unpack(const std::byte* slot, Stream stream) override {
        constexpr std::int64_t copy_ns = 1'000'000;
        for (const std::int64_t end_ns = monotonic_ns() + copy_ns; monotonic_ns() < end_ns;) {
        }
        return plan_->unpack(slot, stream);
    }
    Result<std::optional<std::size_t>> verify(const std::byte* slot, std::uint64_t sums,
                                              Deadline deadline) override {
        return plan_->verify(slot, sums, deadline);
    }

  private:
    std::unique_ptr<device::CopyPlan> plan_;
};

class FakeMover : public device::HostMover {
  public:
    explicit FakeMover(std::int32_t gpu) : gpu_(gpu) {}
    [[nodiscard]] GpuUuid gpu() const override { return uuid(gpu_); }
    Result<std::unique_ptr<device::CopyPlan>> plan(std::vector<device::CopyJob> jobs) override {
        auto made = HostMover::plan(std::move(jobs));
        if (!made) return made;
        return std::make_unique<SlowPlan>(std::move(*made));
    }

  private:
    std::int32_t gpu_;
};

}  // namespace

std::unique_ptr<RankMemory> make_rank_memory(std::uint32_t rank, std::uint32_t ranks,
                                             std::int64_t period) {
    return std::make_unique<RankMemoryOf<ExposedShard>>(rank, ranks, period);
}

RankDevices rank_devices() {
    return {fake_gpus[0], fake_gpus[1], PayloadMemory::direct};
}

}  // namespace test

const device::Gpus& device::gpus() {
    static constexpr device::Gpus all{
        .visible = [] { return std::vector{test::uuid(0), test::uuid(1)}; },
        .open = [](Device gpu, PayloadMemory kind) -> Result<device::Backend> {
            test::require(kind == PayloadMemory::direct, "a fake GPU has no slots");
            return device::Backend{device::make_direct_memory(test::fake_allocations(),
                                                              device::make_host_backend().memory),
                                   std::make_unique<test::FakeMover>(gpu.gpu)};
        }};
    return all;
}

}  // namespace rollring
