#include "rollring/extras/memory_domain.hpp"

#include <fmt/core.h>

#include <utility>

#include "domain.hpp"
#include "gpus.hpp"

namespace rollring {

Result<MemoryDomain> MemoryDomain::open(Device device, const DomainOptions& options) {
    constexpr std::uint64_t unit_bytes = std::uint64_t{2} << 20;
    if (options.chunk_bytes == 0 || options.chunk_bytes % unit_bytes != 0) {
        return refused(
            Errc::invalid_argument,
            fmt::format("DomainOptions.chunk_bytes is {}: it must be a multiple of 2 MiB",
                        options.chunk_bytes));
    }
    auto memory = device::gpus().open_physical_memory(device);
    if (!memory) return std::unexpected(memory.error());
    return MemoryDomain(std::make_unique<Impl>(std::move(*memory), options.chunk_bytes));
}

MemoryDomain::MemoryDomain(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MemoryDomain::MemoryDomain(MemoryDomain&&) noexcept = default;
MemoryDomain& MemoryDomain::operator=(MemoryDomain&& other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
}
MemoryDomain::~MemoryDomain() {
    // A child's copy is left as it is: the memory is the parent's.
    if (impl_ && !impl_->check_process()) static_cast<void>(impl_.release());
}

Result<void*> MemoryDomain::allocate(std::string_view tag, std::uint64_t bytes) {
    if (auto ours = impl_->check_process(); !ours) return std::unexpected(ours.error());
    return impl_->allocate(tag, bytes);
}

Result<void> MemoryDomain::adopt(std::string_view tag, void* address, std::uint64_t bytes,
                                 std::uint64_t* handle) {
    if (auto ours = impl_->check_process(); !ours) return ours;
    return impl_->adopt(tag, address, bytes, handle);
}

Result<void> MemoryDomain::free(void* region) {
    if (auto ours = impl_->check_process(); !ours) return ours;
    return impl_->free(region);
}

Result<DomainReport> MemoryDomain::release(std::span<const std::string_view> tags,
                                           Contents contents, std::span<const Stream> streams) {
    if (auto ours = impl_->check_process(); !ours) return std::unexpected(ours.error());
    return impl_->release(tags, contents, streams);
}

Result<DomainReport> MemoryDomain::release(std::span<const TagRelease> tags,
                                           std::span<const Stream> streams) {
    if (auto ours = impl_->check_process(); !ours) return std::unexpected(ours.error());
    return impl_->release(tags, streams);
}

Result<DomainReport> MemoryDomain::resume(std::span<const std::string_view> tags) {
    if (auto ours = impl_->check_process(); !ours) return std::unexpected(ours.error());
    return impl_->resume(tags);
}

const std::byte* MemoryDomain::kept(const void* device_address, std::uint64_t bytes) const {
    if (!impl_->check_process()) return nullptr;
    return impl_->kept(device_address, bytes);
}

std::uint64_t MemoryDomain::trim_host() {
    return impl_->check_process() ? impl_->trim_host() : 0;
}

std::vector<TagStat> MemoryDomain::tags() const {
    return impl_->tags();
}

}  // namespace rollring
