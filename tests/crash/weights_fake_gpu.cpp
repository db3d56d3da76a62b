// A fake GPU: memory that other processes open where it lies, and the CPU. Stands in for
// lib/cuda, so that kills of engines that read a trainer's own tensors run everywhere.

#include <cstring>
#include <memory>
#include <vector>

#include "../weights/fake_allocations.hpp"
#include "direct_memory.hpp"
#include "gpus.hpp"
#include "host_mover.hpp"
#include "support/process.hpp"
#include "weights_model.hpp"

namespace rollring {
namespace test {
namespace {

GpuUuid uuid() {
    GpuUuid made;
    made.bytes.fill(7);
    return made;
}

class FakeMover : public device::HostMover {
  public:
    [[nodiscard]] GpuUuid gpu() const override { return uuid(); }
};

class FakeStore : public Store {
  public:
    explicit FakeStore(Device device) : device_(device) {}
    [[nodiscard]] Device device() const override { return device_; }
    // Two or three tensors lie in one allocation.
    std::byte* make(std::size_t bytes) override {
        constexpr std::size_t apart = 8;
        const std::size_t taken = (bytes / apart + 1) * apart;
        if (blocks_.empty() || used_ + taken > blocks_.back()->bytes()) {
            constexpr std::size_t block_bytes = 8192;
            blocks_.push_back(std::make_unique<FakeAllocation>(std::max(block_bytes, taken)));
            used_ = 0;
        }
        std::byte* const at = blocks_.back()->data() + used_;
        used_ += taken;
        return at;
    }
    void write(std::byte* to, std::span<const std::byte> bytes) override {
        if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    }
    void read(const std::byte* from, std::span<std::byte> bytes) override {
        if (!bytes.empty()) std::memcpy(bytes.data(), from, bytes.size());
    }
    void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
        if (bytes != 0) std::memcpy(to, from, bytes);
    }

  private:
    Device device_;
    std::vector<std::unique_ptr<FakeAllocation>> blocks_;
    std::size_t used_ = 0;  // of the last one
};

}  // namespace

std::unique_ptr<Store> make_gpu_store(Device device) {
    return std::make_unique<FakeStore>(device);
}

}  // namespace test

const device::Gpus& device::gpus() {
    static constexpr device::Gpus all{
        .visible = [] { return std::vector{test::uuid()}; },
        .open = [](Device, PayloadMemory kind) -> Result<device::Backend> {
            test::require(kind == PayloadMemory::direct, "a fake GPU has no slots");
            return device::Backend{device::make_direct_memory(test::fake_allocations(), nullptr),
                                   std::make_unique<test::FakeMover>()};
        }};
    return all;
}

}  // namespace rollring
