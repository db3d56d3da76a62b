#include "rollring/memory_domain.hpp"

#include <fmt/format.h>

#include <utility>

#include "domain.hpp"

namespace rollring {

class MemoryDomain::Impl : public cuda::Domain {
  public:
    using cuda::Domain::Domain;
};

Result<MemoryDomain> MemoryDomain::open(Device device, const DomainOptions& options) {
    constexpr std::uint64_t unit_bytes = std::uint64_t{2} << 20;
    if (options.chunk_bytes == 0 || options.chunk_bytes % unit_bytes != 0) {
        return std::unexpected(
            Error{Errc::invalid_argument, 0,
                  fmt::format("DomainOptions.chunk_bytes is {}: it must be a multiple of 2 MiB",
                              options.chunk_bytes)});
    }
    auto memory = cuda::open_physical_memory(device);
    if (!memory) return std::unexpected(memory.error());
    return MemoryDomain(std::make_unique<Impl>(std::move(*memory), options.chunk_bytes));
}

MemoryDomain::MemoryDomain(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MemoryDomain::MemoryDomain(MemoryDomain&&) noexcept = default;
MemoryDomain& MemoryDomain::operator=(MemoryDomain&&) noexcept = default;
MemoryDomain::~MemoryDomain() = default;

Result<void*> MemoryDomain::allocate(std::string_view tag, std::uint64_t bytes) {
    return impl_->allocate(tag, bytes);
}

Result<void> MemoryDomain::free(void* region) {
    return impl_->free(region);
}

Result<DomainReport> MemoryDomain::release(std::span<const std::string_view> tags,
                                           Contents contents, std::span<const Stream> streams) {
    return impl_->release(tags, contents, streams);
}

Result<DomainReport> MemoryDomain::resume(std::span<const std::string_view> tags) {
    return impl_->resume(tags);
}

std::uint64_t MemoryDomain::trim_host() {
    return impl_->trim_host();
}

std::vector<TagStat> MemoryDomain::tags() const {
    return impl_->tags();
}

}  // namespace rollring
