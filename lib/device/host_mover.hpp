#pragma once
// The CPU as mover; also the reference that GPU kernels are compared with, bit for bit.

#include "backend.hpp"

namespace rollring::device {

class HostMover : public Mover {
  public:
    [[nodiscard]] GpuUuid gpu() const override { return {}; }
    Result<void> check_address(const void*, std::uint64_t) override { return {}; }
    // The owner of host memory keeps it as long as it is used.
    std::optional<std::size_t> find_absent(std::span<const MemoryPlace>) override { return {}; }
    Result<std::unique_ptr<CopyPlan>> plan(std::vector<CopyJob> jobs) override;
    Result<std::unique_ptr<Difference>> difference(
        std::vector<std::vector<CopyJob>> parts) override;
    Result<void> when_reached(Stream, Reached reached, void* context) override {
        reached(context);
        return {};
    }
    Result<void> wait(Stream, Deadline) override { return {}; }
    Result<void> health() override { return {}; }
};

// Rounds to nearest, ties to even. Every NaN becomes 0x7fff, as the GPU's conversions do.
std::uint16_t bf16_of(float value);
std::uint16_t f16_of(float value);

// See checksum.hpp.
std::uint64_t checksum(const std::byte* bytes, std::uint64_t count);

}  // namespace rollring::device
