#include "rollring/memory_domain.hpp"

#include <utility>

#include "domain.hpp"

namespace rollring {

MemoryDomain::MemoryDomain(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MemoryDomain::MemoryDomain(MemoryDomain&&) noexcept = default;
MemoryDomain& MemoryDomain::operator=(MemoryDomain&&) noexcept = default;
MemoryDomain::~MemoryDomain() = default;

Result<void*> MemoryDomain::allocate(std::string_view tag, std::uint64_t bytes) {
    return impl_->allocate(tag, bytes);
}

Result<void> MemoryDomain::adopt(std::string_view tag, void* address, std::uint64_t bytes,
                                 std::uint64_t* handle) {
    return impl_->adopt(tag, address, bytes, handle);
}

Result<void> MemoryDomain::free(void* region) {
    return impl_->free(region);
}

Result<DomainReport> MemoryDomain::release(std::span<const std::string_view> tags,
                                           Contents contents, std::span<const Stream> streams) {
    return impl_->release(tags, contents, streams);
}

Result<DomainReport> MemoryDomain::release(std::span<const TagRelease> tags,
                                           std::span<const Stream> streams) {
    return impl_->release(tags, streams);
}

Result<DomainReport> MemoryDomain::resume(std::span<const std::string_view> tags) {
    return impl_->resume(tags);
}

const std::byte* MemoryDomain::kept(const void* device_address, std::uint64_t bytes) const {
    return impl_->kept(device_address, bytes);
}

std::uint64_t MemoryDomain::trim_host() {
    return impl_->trim_host();
}

std::vector<TagStat> MemoryDomain::tags() const {
    return impl_->tags();
}

}  // namespace rollring
