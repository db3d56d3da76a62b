#pragma once
// Tensors that other processes read where they lie (PayloadMemory::direct): a block is a list of
// allocations, one behind the other, and its descriptor a sealed table of them. How an allocation
// is found and opened is the device's business.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "backend.hpp"

namespace rollring::device {

inline constexpr std::uint64_t allocations_most = 1 << 16;  // of one block

// By this another process opens an allocation: a CUipcMemHandle.
using AllocationHandle = std::array<std::byte, 64>;

struct Allocation {
    std::byte* begin = nullptr;  // a multiple of piece_alignment
    std::uint64_t bytes = 0;
    std::uint64_t id = 0;  // that no other allocation of this process has, or has had
    AllocationHandle handle{};
};

// A device's allocations, of this process and of others.
class Allocations {
  public:
    virtual ~Allocations() = default;
    // The one around an address, which is mapped. unsupported: it cannot be shared, with the
    // remedy.
    virtual Result<Allocation> find(const std::byte* address) = 0;
    // The id of the one that is there now; empty: none.
    virtual std::optional<std::uint64_t> id_at(const std::byte* begin) = 0;
    // Maps one of another process; its address. bad_manifest: it has fewer bytes.
    virtual Result<std::byte*> open(const AllocationHandle& handle, std::uint64_t bytes) = 0;
    virtual void close(std::byte* begin) = 0;
    // The most that one can have.
    virtual std::uint64_t bytes_most() = 0;
};

// `own`: makes the blocks of this process.
std::unique_ptr<Memory> make_direct_memory(std::shared_ptr<Allocations> allocations,
                                           std::unique_ptr<Memory> own);

// A line of the table.
struct AllocationLine {
    AllocationHandle handle;
    std::uint64_t bytes;
    std::uint64_t offset;  // in the block: behind the one before, at a multiple of piece_alignment
};
static_assert(sizeof(AllocationLine) == 80);

}  // namespace rollring::device
