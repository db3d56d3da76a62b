#include <fmt/format.h>

#include <utility>

#include "backends.hpp"
#include "domain.hpp"

namespace rollring {

Result<MemoryDomain> MemoryDomain::open(Device device, const DomainOptions& options) {
    constexpr std::uint64_t unit_bytes = std::uint64_t{2} << 20;
    if (options.chunk_bytes == 0 || options.chunk_bytes % unit_bytes != 0) {
        return refused(
            Errc::invalid_argument,
            fmt::format("DomainOptions.chunk_bytes is {}: it must be a multiple of 2 MiB",
                        options.chunk_bytes));
    }
    auto memory = cuda::open_physical_memory(device);
    if (!memory) return std::unexpected(memory.error());
    return MemoryDomain(std::make_unique<Impl>(std::move(*memory), options.chunk_bytes));
}

}  // namespace rollring
