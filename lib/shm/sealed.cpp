#include "sealed.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "bounds.hpp"

namespace rollring {

Result<Sealed> Sealed::make(std::string_view what, std::uint64_t bytes) {
    const std::string name = fmt::format("rollring.{}", what);
    Sealed made;
    made.fd_ = Fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    made.bytes_ = bytes;
    if (!made.fd_) return failed(Errc::system, errno, "cannot make a memfd for " + name);
    auto bound = detail::bound_of_length(bytes);
    if (!bound) bound = detail::bound_of_pages(bytes);
    const int error = bound ? ENOSPC : detail::allocate(made.fd(), 0, bytes);
    if (error != 0) {
        return failed(Errc::not_enough_shared_memory, error,
                      detail::shortage(bound ? *bound : least_memory_bound(), name, bytes,
                                       "lower slot_bytes or slots"));
    }
    if (fcntl(made.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        return failed(Errc::system, errno, "cannot seal the memfd for " + name);
    }
    return made;
}

Result<Sealed> Sealed::accept(Fd fd, std::uint64_t bytes, bool contents_sealed) {
    const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | (contents_sealed ? F_SEAL_WRITE : 0);
    const int seals = fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & wanted) != wanted) {
        return failed(Errc::bad_manifest, 0,
                      "the peer sent a descriptor that is not sealed memory");
    }
    struct stat status{};
    if (fstat(fd.get(), &status) != 0) return failed(Errc::system, errno, "cannot fstat a memfd");
    if (static_cast<std::uint64_t>(status.st_size) < bytes) {
        return failed(Errc::bad_manifest, 0,
                      fmt::format("the peer sent {} bytes of sealed memory, but announced {}",
                                  status.st_size, bytes));
    }
    Sealed accepted;
    accepted.fd_ = std::move(fd);
    accepted.bytes_ = static_cast<std::uint64_t>(status.st_size);
    return accepted;
}

Result<Mapping> Sealed::map(std::uint64_t offset, std::uint64_t bytes, bool writable) const {
    if (bytes == 0 || offset > bytes_ || bytes > bytes_ - offset) {
        return refused(Errc::invalid_argument, "a mapping outside of its sealed memory");
    }
    auto mapping = Mapping::of(fd(), offset, bytes, writable);
    if (mapping) return std::move(*mapping);
    return failed(mapping.error() == EPERM ? Errc::permission_denied : Errc::system,
                  mapping.error(), fmt::format("cannot map {} bytes of sealed memory", bytes));
}

Result<void> Sealed::seal_for_others() const {
    if (fcntl(fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) return {};
    return failed(Errc::system, errno, "cannot seal a memfd against writers (Linux 5.1 can)");
}

Result<void> Sealed::seal_contents() const {
    if (fcntl(fd(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) == 0) return {};
    return failed(Errc::system, errno, "cannot seal the contents of a memfd");
}

Result<Fd> Sealed::read_only() const {
    Fd reopened(open(fmt::format("/proc/self/fd/{}", fd()).c_str(), O_RDONLY | O_CLOEXEC));
    if (reopened) return reopened;
    return failed(Errc::system, errno, "cannot reopen a memfd: is /proc mounted?");
}

}  // namespace rollring
