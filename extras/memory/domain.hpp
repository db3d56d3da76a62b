#pragma once
// The state machine of MemoryDomain, over any PhysicalMemory.
//
// Nothing is lost on an error because every step but the last can be undone: copies leave the
// memory as it is, and unmapping keeps the physical memory and its bytes until its handle is
// destroyed. So a release copies everything out, then unmaps everything, and only then destroys
// handles. Unmapping chunk i - 1 while chunk i is copied would save the time of unmapping, about 1
// ms of the 300 ms that 16 GiB take, and cost the guarantee.
//
// If an undo fails, too, chunks stay `held` or `mapped` under a released tag. The next resume
// continues from that state. The steps are in region_memory.hpp.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "liveness.hpp"
#include "region_memory.hpp"
#include "rollring/extras/memory_domain.hpp"

namespace rollring::domain {

class Domain {
  public:
    // chunk_bytes: a multiple of the granularity.
    Domain(std::unique_ptr<PhysicalMemory> memory, std::uint64_t chunk_bytes);
    Domain(const Domain&) = delete;
    Domain& operator=(const Domain&) = delete;
    ~Domain();

    Result<void*> allocate(std::string_view tag, std::uint64_t bytes);
    Result<void> adopt(std::string_view tag, void* address, std::uint64_t bytes,
                       std::uint64_t* handle);
    Result<void> free(void* address);
    Result<DomainReport> release(std::span<const std::string_view> names, Contents contents,
                                 std::span<const Stream> streams);
    Result<DomainReport> release(std::span<const TagRelease> wanted,
                                 std::span<const Stream> streams);
    Result<DomainReport> resume(std::span<const std::string_view> names);
    [[nodiscard]] const std::byte* kept(const void* device_address, std::uint64_t bytes) const;
    std::uint64_t trim_host();
    [[nodiscard]] std::vector<TagStat> tags() const;

  private:
    struct Tag {
        std::string name;
        bool resident = true;
        std::vector<Region> regions;
    };

    // The tag if there is one; an error if no memory can be added to it now.
    Result<Tag*> growing(std::string_view name, std::string_view doing);
    void add(Tag* tag, std::string_view name, Region region);
    Result<std::vector<Tag*>> select(std::span<const std::string_view> names, bool resident);
    static std::vector<Region*> regions_of(std::span<Tag* const> chosen);

    RegionMemory memory_;
    std::vector<Tag> tags_;  // in the order of their first allocation
};

}  // namespace rollring::domain

namespace rollring {

class MemoryDomain::Impl : public domain::Domain {
  public:
    using domain::Domain::Domain;
    // The driver's state does not survive a fork.
    [[nodiscard]] Result<void> check_process() const { return maker_.check("memory domain"); }

  private:
    MakerProcess maker_;
};

}  // namespace rollring
