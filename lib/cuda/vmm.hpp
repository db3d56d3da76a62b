#pragma once
// Memory of one GPU by the virtual memory calls of the driver. Physical memory, addresses and
// mappings are independent: imported memory need not be mapped at once, and mapped memory can move.
// Slots (vmm_memory.cpp) and memory domains (cuda_physical.cpp) use these calls; each describes a
// refusal in its own words.

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <string_view>

#include "driver.hpp"
#include "fd.hpp"
#include "physical_memory.hpp"

namespace rollring::cuda {

// The driver's answer, and the attempted step: "cannot <step> memory".
struct Refusal {
    CUresult result;
    std::string_view step;
};
template <class T>
using Driven = std::expected<T, Refusal>;

class Vmm {
  public:
    enum class Sharing { none, by_descriptor };
    // `context` must outlive this object.
    static Driven<Vmm> open(const Context& context, Sharing sharing);

    // Sizes and addresses are multiples of it.
    [[nodiscard]] std::uint64_t granularity_bytes() const { return granularity_bytes_; }

    [[nodiscard]] Driven<std::byte*> reserve(std::uint64_t bytes) const;
    [[nodiscard]] Driven<void> unreserve(std::byte* address, std::uint64_t bytes) const;

    [[nodiscard]] Driven<device::MemoryHandle> create(std::uint64_t bytes) const;
    // The handle of another process's memory; the descriptor is not needed after that.
    [[nodiscard]] Driven<device::MemoryHandle> import(const Fd& fd) const;
    [[nodiscard]] Driven<Fd> export_descriptor(device::MemoryHandle memory) const;
    // Mapped memory lives on until it is unmapped.
    [[nodiscard]] Driven<void> destroy(device::MemoryHandle memory) const;
    // The ordinal of the memory's GPU, if the driver tells.
    [[nodiscard]] std::optional<int> gpu_of(device::MemoryHandle memory) const;

    // With access for the GPU of the context, or not at all.
    [[nodiscard]] Driven<void> map(std::byte* address, std::uint64_t bytes,
                                   device::MemoryHandle memory, CUmemAccess_flags access) const;
    [[nodiscard]] Driven<void> unmap(std::byte* address, std::uint64_t bytes) const;

    // The steps of map(), as a refusal names them.
    static constexpr std::string_view mapping = "map";
    static constexpr std::string_view giving_access = "give access to";

  private:
    Vmm(const Context& context, Sharing sharing);
    [[nodiscard]] const Driver& api() const { return context_->api(); }

    const Context* context_;
    CUmemAllocationProp kind_{};
    std::uint64_t granularity_bytes_ = 0;
};

}  // namespace rollring::cuda
