#pragma once
// The state machine of MemoryDomain, over any PhysicalMemory.
//
// Nothing is lost on an error because every step but the last can be taken back: copies leave the
// memory as it is, and unmapping keeps the physical memory and its bytes until its handle is
// destroyed. So a release copies everything out, then unmaps everything, and only then destroys
// handles. Unmapping chunk i - 1 while chunk i is copied would save the time of unmapping, about
// 1 ms of the 300 ms that 16 GiB take, and cost the guarantee.
//
// Where taking back fails too, or the driver refuses to destroy a handle, chunks stay as they are:
// `held` or `mapped` under a released tag. The next resume goes on from there.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "physical.hpp"
#include "rollring/memory_domain.hpp"

namespace rollring::cuda {

class Domain {
  public:
    // chunk_bytes: a multiple of the granularity.
    Domain(std::unique_ptr<PhysicalMemory> memory, std::uint64_t chunk_bytes);
    Domain(const Domain&) = delete;
    Domain& operator=(const Domain&) = delete;
    ~Domain();

    Result<void*> allocate(std::string_view tag, std::uint64_t bytes);
    Result<void> free(void* address);
    Result<DomainReport> release(std::span<const std::string_view> names, Contents contents,
                                 std::span<const Stream> streams);
    Result<DomainReport> resume(std::span<const std::string_view> names);
    std::uint64_t trim_host();
    [[nodiscard]] std::vector<TagStat> tags() const;

  private:
    enum class State : std::uint8_t {
        absent,  // no physical memory
        held,    // physical memory that is not mapped
        mapped,
    };
    struct Chunk {
        std::byte* address = nullptr;
        std::uint64_t bytes = 0;
        std::byte* slab_part = nullptr;  // of the region's slab, if that has one
        std::uint64_t used_bytes = 0;    // less than `bytes` in the last chunk of a region
        State state = State::absent;
        bool on_host = false;  // its contents are in the slab and not yet on the device
        MemoryHandle handle{};
    };
    struct Region {
        std::byte* address = nullptr;
        std::uint64_t reserved_bytes = 0;
        std::uint64_t used_bytes = 0;
        std::byte* slab = nullptr;
        std::vector<Chunk> chunks;
    };
    struct Tag {
        std::string name;
        bool resident = true;
        std::vector<Region> regions;
    };
    struct Before {  // how a step found a chunk
        Chunk* chunk;
        State state;
    };

    Result<std::vector<Tag*>> select(std::span<const std::string_view> names, bool resident);
    static std::vector<Region*> regions_of(std::span<Tag* const> chosen);
    Result<Region> reserve(std::uint64_t bytes);
    Result<void> check_free(std::uint64_t need_bytes);
    Error out_of_memory(std::uint64_t need_bytes);

    // domain_steps.cpp
    Result<void> bring(Chunk& chunk, std::vector<Before>& undo);
    Result<void> put_back(std::span<const Before> undo);
    Result<void> unmap_all(std::span<Region* const> regions);
    Result<void> copy_out(std::span<Region* const> regions, std::vector<Region*>& pinned);
    Result<std::uint64_t> copy_in(std::span<Region* const> regions, std::vector<Before>& undo);
    Result<void> end_copies();
    void give_slabs_back(std::span<Region* const> regions);
    std::uint64_t destroy_handles(Region& region);
    bool bury(Region& region);
    void bury_again();

    std::unique_ptr<PhysicalMemory> memory_;
    std::uint64_t chunk_bytes_;
    bool copying_ = false;          // copies were queued and not waited for yet
    std::vector<Tag> tags_;         // in the order of their first allocation
    std::vector<Region> leftover_;  // freed, but the driver refused to take all of it: tried again
};

}  // namespace rollring::cuda
