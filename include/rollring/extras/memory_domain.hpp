#pragma once
// GPU memory that is released, and taken back at the same addresses, by tag: for trainers and
// engines that share a GPU and use it in turns (sleep and wake of vLLM, release and resume of
// SGLang and AReaL).
//
//   allocate("weights", ...), allocate("kv_cache", ...)
//   release({"weights"}, keep contents), release({"kv_cache"})  -> the memory is free for others
//   resume({"weights"})                                         -> same addresses, same bytes
//
// Addresses stay reserved while the region lives; pointers and CUDA graphs stay valid over release
// and resume, and must not be used in between. Calls are atomic. One thread at a time per domain.
// In a forked child it is inert, and returns Errc::forked.
//
// Calls that wait for the device take no deadline: memory cannot be taken away under work, and the
// driver's wait for a whole device has no time limit. A caller with a deadline waits for its own
// streams first.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/version.hpp"
#include "rollring/weight_tensor.hpp"

namespace rollring {

struct DomainOptions {
    // The unit of physical memory, a multiple of 2 MiB. Mapping a unit takes a fixed time.
    std::uint64_t chunk_bytes = std::uint64_t{512} << 20;
};

enum class Contents : std::uint8_t {
    keep,  // copied to pinned host memory, and back
    drop,  // undefined after resume: a KV cache, or weights that the next sync brings
};

struct TagRelease {
    std::string_view tag;
    Contents contents = Contents::keep;
};

struct DomainReport {
    // Bytes released or resumed: all those of the tags, unless the driver refused to release a
    // part. Such a part stays allocated, and the next resume reuses it.
    std::uint64_t device_bytes = 0;
    std::uint64_t copied_bytes = 0;
    std::int64_t wall_ns = 0;
};

struct TagStat {
    std::string tag;
    std::uint64_t bytes = 0;  // of device memory: each region rounded up to 2 MiB
    bool resident = true;
    std::uint64_t host_bytes = 0;  // pinned, kept for the next release
};

class ROLLRING_API MemoryDomain {
  public:
    // Errors: no_gpu, unsupported (a GPU without virtual memory management), invalid_argument,
    // device_error.
    static Result<MemoryDomain> open(Device device, const DomainOptions& options = {});
    MemoryDomain(MemoryDomain&&) noexcept;
    MemoryDomain& operator=(MemoryDomain&&) noexcept;
    ~MemoryDomain();  // waits for the device and frees everything

    // Device memory, aligned to 2 MiB, under a tag (1 to 63 bytes); its physical chunks belong to
    // this region alone. Not zeroed: CUDA promises no contents for new memory. A tag exists while
    // it has regions. Errors: out_of_device_memory, invalid_argument, already_released (the tag is
    // released at present), device_error.
    Result<void*> allocate(std::string_view tag, std::uint64_t bytes);
    // Lends memory of another allocator to the domain, under a tag: `bytes` that are mapped at
    // `address` from the start of one chunk of physical memory (cuMemCreate), whose handle is
    // *handle. It is released and resumed like the domain's own, and *handle follows: it names the
    // chunk that belongs to the addresses now, 0 while there is none. Addresses and chunk stay the
    // owner's. Once the owner has freed the addresses or `handle`, it calls free() before any other
    // call of the domain.
    // Errors: invalid_argument (not a multiple of 2 MiB, no handle, or lent already),
    // already_released.
    Result<void> adopt(std::string_view tag, void* address, std::uint64_t bytes,
                       std::uint64_t* handle);
    // Frees a whole region, also under a released tag; waits for the device if the memory is
    // resident. For adopted memory, frees only the domain's pinned copy: the memory itself stays as
    // it is, mapped or not.
    // Errors: invalid_argument (not a region of this domain), device_error (it is still there).
    Result<void> free(void* region);

    // Waits for `streams` (a null one is the legacy default stream), and for the whole device if
    // there are none, then releases the physical memory of all regions under the tags; duplicate
    // tags are ignored. The first release that keeps contents pins as much host memory, which takes
    // longer than the copy; later ones use it again.
    // Errors: not_found (no such tag), already_released, host_memory (no pinned memory available),
    // invalid_argument (no tags), device_error. On an error nothing has changed; if a failing
    // driver would not even map the unmapped memory back, the error says so, the tag counts as
    // released, and resume tries again.
    Result<DomainReport> release(std::span<const std::string_view> tags, Contents contents,
                                 std::span<const Stream> streams = {});
    // The same with a choice of contents for each tag. invalid_argument, too, if a tag is named
    // twice with different contents.
    Result<DomainReport> release(std::span<const TagRelease> tags,
                                 std::span<const Stream> streams = {});
    // Takes the memory of the tags back, at the same addresses, with the contents that were kept,
    // and waits until they are there.
    // Errors: not_found, not_released, out_of_device_memory (says how much is needed and free),
    // invalid_argument (no tags), device_error. On an error nothing has changed and it can be tried
    // again.
    Result<DomainReport> resume(std::span<const std::string_view> tags);

    // While a tag is released with its contents kept: the host address of the kept copy of these
    // device bytes. Null if they are not kept, or not within one region. Valid until the tag is
    // resumed.
    [[nodiscard]] const std::byte* kept(const void* device_address, std::uint64_t bytes) const;

    // Gives pinned host memory that holds no contents (of tags that are resident, or released with
    // drop) back to the system. Returns the bytes.
    std::uint64_t trim_host();

    [[nodiscard]] std::vector<TagStat> tags() const;

  private:
    class ROLLRING_LOCAL Impl;
    explicit MemoryDomain(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace rollring
