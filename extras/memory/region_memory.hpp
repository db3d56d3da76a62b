#pragma once
// Regions of device memory at fixed addresses, and the steps that take their physical memory away
// and bring it back. Each step can be undone until handles are destroyed.
//
// If an undo fails, or the driver refuses to destroy a handle, chunks stay `held` or `mapped`: the
// next step continues from that state.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "physical_memory.hpp"

namespace rollring::domain {

using device::MemoryHandle;
using device::PhysicalMemory;

enum class ChunkState : std::uint8_t {
    absent,  // no physical memory
    held,    // physical memory that is not mapped
    mapped,
};
struct Chunk {
    std::byte* address = nullptr;
    std::uint64_t bytes = 0;
    std::byte* slab_part = nullptr;  // of the region's slab, if that has one
    std::uint64_t used_bytes = 0;    // less than `bytes` in the last chunk of a region
    ChunkState state = ChunkState::absent;
    bool on_host = false;  // its contents are in the slab and not yet on the device
    MemoryHandle handle{};
    std::uint64_t* owner_handle = nullptr;  // of adopted memory: the owner's word for `handle`

    void set_handle(MemoryHandle is) {
        handle = is;
        if (owner_handle != nullptr) *owner_handle = std::to_underlying(is);
    }
};
struct Region {
    std::byte* address = nullptr;
    std::uint64_t reserved_bytes = 0;
    std::uint64_t used_bytes = 0;
    std::byte* slab = nullptr;
    std::vector<Chunk> chunks;

    // Addresses and physical memory belong to another allocator. There is one chunk.
    [[nodiscard]] bool is_adopted() const { return chunks.front().owner_handle != nullptr; }
};

class RegionMemory {
  public:
    // chunk_bytes: a multiple of the granularity.
    RegionMemory(std::unique_ptr<PhysicalMemory> memory, std::uint64_t chunk_bytes)
        : memory_(std::move(memory)), chunk_bytes_(chunk_bytes) {}

    [[nodiscard]] std::uint64_t granularity_bytes() const { return memory_->granularity_bytes(); }

    // A new region, completely mapped. out_of_device_memory, device_error: nothing is left of it.
    Result<Region> make(std::uint64_t bytes);
    // Unmaps and frees the region; the device must not use it any more. Parts that the driver
    // refuses are retried later.
    void discard(Region region);
    void discard_again();
    [[nodiscard]] bool has_leftovers() const { return !leftover_.empty(); }

    // out_of_device_memory if less is free.
    Result<void> check_free(std::uint64_t need_bytes);
    Error out_of_memory(std::uint64_t need_bytes);
    // Waits for the work on these streams, or on the whole device.
    Result<void> wait(std::span<const Stream> streams) { return memory_->wait(streams); }

    // On an error the old state is restored, or the error says which part is not.
    Result<void> unmap_all(std::span<Region* const> regions);
    // Copies to pinned host memory. `pinned`: the regions that got their slab here; none, on an
    // error.
    Result<void> copy_out(std::span<Region* const> regions, std::vector<Region*>& pinned);
    // Maps all chunks and restores their contents; returns the bytes copied. On an error the old
    // state is restored, or the error says which part is not.
    Result<std::uint64_t> bring_back(std::span<Region* const> regions, std::uint64_t need_bytes);
    void give_slabs_back(std::span<Region* const> regions);
    // Returns the bytes freed; parts that the driver refuses stay allocated.
    std::uint64_t destroy_handles(Region& region);
    // Waits for copies that a failed step left.
    Result<void> end_copies();
    // Abandons pending copies: the device is lost.
    void forget_copies() { copying_ = false; }

  private:
    struct Before {  // the state in which a step found a chunk
        Chunk* chunk;
        ChunkState state;
    };

    Result<Region> reserve(std::uint64_t bytes) const;
    Result<void> bring(Chunk& chunk, std::vector<Before>& undo);
    Result<void> put_back(std::span<const Before> undo);
    Result<std::uint64_t> copy_in(std::span<Region* const> regions, std::vector<Before>& undo);
    bool take_down(Region& region);

    std::unique_ptr<PhysicalMemory> memory_;
    std::uint64_t chunk_bytes_;
    bool copying_ = false;          // copies were queued and not waited for yet
    std::vector<Region> leftover_;  // discarded, but the driver refused to take all of it
};

}  // namespace rollring::domain
