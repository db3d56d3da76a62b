#include "named_object.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bounds.hpp"
#include "human.hpp"
#include "segment_object.hpp"

namespace rollring {

bool detail::read_at(int fd, std::uint64_t offset, void* to, std::uint64_t bytes) {
    ssize_t got = 0;
    do {
        got = pread(fd, to, bytes, static_cast<off_t>(offset));
    } while (got < 0 && errno == EINTR);
    if (got >= 0) errno = 0;
    return got == static_cast<ssize_t>(bytes);
}

NamedObject::NamedObject(std::string name, SharedObject shm)
    : name_(std::move(name)), shm_(std::move(shm)) {}

bool NamedObject::linked() const {
    struct stat status{};
    return fstat(fd(), &status) != 0 || status.st_nlink > 0;
}

std::uint64_t NamedObject::resident_bytes() const {
    struct stat status{};
    return fstat(fd(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}

Result<Mapping> NamedObject::map(std::uint64_t offset, std::uint64_t bytes, bool writable) const {
    auto mapping = Mapping::of(fd(), offset, bytes, writable);
    if (mapping) return std::move(*mapping);
    return failed(Errc::system, mapping.error(),
                  fmt::format("cannot map {} at {} of {}: is RLIMIT_AS (ulimit -v) too low?",
                              human_bytes(bytes), offset, name()));
}

std::string NamedObject::whose_text(std::string_view what) const {
    return fmt::format("{} of ring {}", what, detail::ring_of(name_));
}

// Used when memory is short: reserves one piece at a time, each after a check, because pages that
// the object has already need no memory. After a failure the pieces are undone, unless something
// was written there.
Result<void> NamedObject::reserve_slowly(std::uint64_t offset, std::uint64_t bytes,
                                         std::string_view what, std::string_view remedy) const {
    constexpr std::uint64_t piece_bytes = std::uint64_t{2} << 20;
    for (std::uint64_t done = 0; done < bytes; done += piece_bytes) {
        const std::uint64_t next = std::min(piece_bytes, bytes - done);
        const auto bound = detail::bound_of_pages(piece_bytes);
        const int error = bound ? 0 : detail::allocate(fd(), offset + done, next);
        if (!bound && error == 0) continue;
        give_back_unused(offset, bytes);
        const std::string whose = whose_text(what);
        if (error == 0 || error == ENOSPC || error == ENOMEM) {
            return detail::no_space(error, bytes, whose, remedy);
        }
        return failed(Errc::system, error, "cannot reserve pages of " + name());
    }
    return {};
}

Result<void> NamedObject::reserve(std::uint64_t offset, std::uint64_t bytes, std::string_view what,
                                  std::string_view remedy) const {
    // Some of these pages may be reserved already.
    if (detail::bound_of_pages(bytes)) return reserve_slowly(offset, bytes, what, remedy);
    const int error = detail::allocate(fd(), offset, bytes);
    if (error == 0) return {};
    if (error == ENOSPC || error == ENOMEM) {
        return detail::no_space(error, bytes, whose_text(what), remedy);
    }
    return failed(Errc::system, error, "cannot reserve pages of " + name());
}

void NamedObject::give_back(std::uint64_t offset, std::uint64_t bytes) const {
    fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
}

// Pages that are reserved and not written count as a hole.
void NamedObject::give_back_unused(std::uint64_t offset, std::uint64_t bytes) const {
    const off_t data = lseek(fd(), static_cast<off_t>(offset), SEEK_DATA);
    const bool unused = data < 0 ? errno == ENXIO : data >= static_cast<off_t>(offset + bytes);
    if (unused) give_back(offset, bytes);
}

bool NamedObject::read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
    return detail::read_at(fd(), offset, to, bytes);
}

}  // namespace rollring
