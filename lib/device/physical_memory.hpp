#pragma once
// The GPU functions that a memory domain (extras/memory) needs, as an interface, so that its state
// machine can be tested over a fake with chosen failures. No header of CUDA here.
//
// A call that returns an error has done nothing. Errors name the failed driver call and its object;
// the domain adds the tags.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "rollring/error.hpp"
#include "rollring/weight_tensor.hpp"

namespace rollring::device {

// Physical memory, mapped or not.
enum class MemoryHandle : std::uint64_t {};

class PhysicalMemory {
  public:
    virtual ~PhysicalMemory() = default;

    // Sizes and addresses of everything but slabs and copies are multiples of it. 2 MiB on a GPU.
    [[nodiscard]] virtual std::uint64_t granularity_bytes() const = 0;
    virtual Result<std::uint64_t> free_bytes() = 0;

    virtual Result<std::byte*> reserve(std::uint64_t bytes) = 0;
    virtual Result<void> unreserve(std::byte* address, std::uint64_t bytes) = 0;

    // out_of_device_memory, device_error
    virtual Result<MemoryHandle> create(std::uint64_t bytes) = 0;
    // Mapped memory would live on: unmap it first.
    virtual Result<void> destroy(MemoryHandle handle) = 0;

    // With access for the GPU. The contents belong to the physical memory, at any address.
    virtual Result<void> map(std::byte* address, std::uint64_t bytes, MemoryHandle handle) = 0;
    virtual Result<void> unmap(std::byte* address, std::uint64_t bytes) = 0;

    // Pinned host memory. host_memory, device_error
    virtual Result<std::byte*> pin(std::uint64_t bytes) = 0;
    virtual Result<void> unpin(std::byte* slab) = 0;

    // In order, on a stream of our own that waits for no other.
    virtual Result<void> copy_out(std::byte* slab, const std::byte* address,
                                  std::uint64_t bytes) = 0;
    virtual Result<void> copy_in(std::byte* address, const std::byte* slab,
                                 std::uint64_t bytes) = 0;
    virtual Result<void> wait_copies() = 0;

    // Waits until everything queued on the streams, or on the whole device if there are none, is
    // done.
    virtual Result<void> wait(std::span<const Stream> streams) = 0;
};

}  // namespace rollring::device
