#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bounds.hpp"
#include "overflow_file.hpp"
#include "segment_object.hpp"
#include "xxh3.hpp"

namespace rollring {
namespace {

constexpr const char* other_directory = "name another directory with --overflow";
constexpr const char* ending = ".overflow";

Errc code_of(int error) {
    switch (error) {
        case ENOENT:
            return Errc::not_found;
        case ENOTDIR:
        case ENAMETOOLONG:
        case ELOOP:
            return Errc::invalid_argument;
        case EACCES:
        case EPERM:
        case EROFS:
            return Errc::permission_denied;
        default:
            return Errc::system;
    }
}

std::string owner_text(const std::string& directory) {
    struct stat status{};
    if (stat(directory.c_str(), &status) != 0) return {};
    return fmt::format(" ({} belongs to {} with mode {:03o}, this process is {})", directory,
                       user_text(status.st_uid), status.st_mode & 0777, user_text(geteuid()));
}

std::string folder_of(const std::string& path) {
    return path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
}

}  // namespace

Result<std::string> OverflowFile::path_in(const std::string& directory, const std::string& object,
                                          std::uint64_t ring_id) {
    const std::unique_ptr<char, decltype(&std::free)> real(realpath(directory.c_str(), nullptr),
                                                           &std::free);
    struct stat status{};
    if (real == nullptr || stat(real.get(), &status) != 0) {
        const int error = errno;
        return failed(code_of(error), error,
                      fmt::format("the overflow directory {} cannot be used: create it, or {}",
                                  directory, other_directory));
    }
    if (!S_ISDIR(status.st_mode)) {
        return failed(Errc::invalid_argument, ENOTDIR,
                      fmt::format("the overflow directory {} is not a directory: {}", directory,
                                  other_directory));
    }
    struct stat memory{};
    if (stat("/dev/shm", &memory) == 0 && memory.st_dev == status.st_dev) {
        return refused(Errc::invalid_argument,
                       fmt::format("the overflow directory {} is in /dev/shm, which the overflow "
                                   "file is meant to relieve: {}, or raise --spill-bytes",
                                   directory, other_directory));
    }
    std::string path =
        fmt::format("{}{}{}.{:016x}{}", real.get(), std::strcmp(real.get(), "/") == 0 ? "" : "/",
                    object.substr(1), ring_id, ending);
    if (path.size() >= sizeof OverflowPath::path) {
        return refused(Errc::invalid_argument,
                       fmt::format("the path of the overflow file {} has {} bytes, at most {} fit: "
                                   "name a directory with a shorter path with --overflow",
                                   path, path.size(), sizeof OverflowPath::path - 1));
    }
    return path;
}

OverflowPath OverflowFile::to_page(const std::string& path, std::uint64_t ring_id) {
    OverflowPath named{};
    if (path.empty()) return named;
    std::memcpy(named.path, path.data(), path.size());
    named.check = XXH3_64bits_withSeed(named.path, sizeof named.path, ring_id);
    return named;
}

std::optional<std::string> detail::overflow_path(int fd, std::uint64_t ring_id) {
    OverflowPath named{};
    if (!read_at(fd, overflow_path_offset, &named, sizeof named)) return std::nullopt;
    const std::size_t bytes = strnlen(named.path, sizeof named.path);
    const bool sound = named.path[0] == '/' && bytes < sizeof named.path &&
                       named.check == XXH3_64bits_withSeed(named.path, sizeof named.path, ring_id);
    if (!sound) return std::nullopt;
    return std::string(named.path, bytes);
}

// Also for a ring that is not finished: the file is made after the object names it.
Result<void> detail::unlink_overflow(int fd, const std::string& object) {
    HeaderImage image;
    if (!read_at(fd, 0, image.bytes, sizeof image.bytes)) {
        if (errno != 0) return unreadable(object);
        return {};
    }
    if (image.get().magic != segment_magic || image.get().abi != abi_version) return {};
    const auto path = overflow_path(fd, image.get().ring_id);
    if (!path && errno != 0) return unreadable(object);
    if (!path || !path->ends_with(ending)) return {};
    if (unlinkat(AT_FDCWD, path->c_str(), 0) == 0 || errno == ENOENT || errno == ENOTDIR) return {};
    return failed(Errc::system, errno,
                  fmt::format("cannot remove the overflow file {} of {}: --force (in Python, "
                              "force=True) removes the ring without it",
                              *path, object));
}

Result<void> OverflowFile::make(const std::string& path, std::uint64_t bytes,
                                std::uint64_t ring_id) {
    if (const auto bound = detail::bound_of_length(bytes)) {
        return failed(
            Errc::invalid_argument, EFBIG,
            detail::shortage(*bound, "the overflow file", bytes, "lower --overflow-bytes"));
    }
    const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    const OverflowPath identity = to_page(path, ring_id);
    const bool made = fd && fchmod(fd.get(), 0600) == 0 &&
                      ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 &&
                      pwrite(fd.get(), &identity, sizeof identity, 0) == ssize_t{sizeof identity};
    if (made) return {};
    const int error = errno;
    if (fd) unlinkat(AT_FDCWD, path.c_str(), 0);
    return failed(
        code_of(error), error,
        fmt::format(
            "cannot make the overflow file {} of {}{}: {}{}", path, human_bytes(bytes),
            code_of(error) == Errc::permission_denied ? owner_text(folder_of(path)) : std::string(),
            other_directory, error == EFBIG ? ", or lower --overflow-bytes" : ""));
}

Result<OverflowFile> OverflowFile::open(const std::string& path, std::uint64_t bytes,
                                        std::uint64_t ring_id, Access access) {
    const int how = access == Access::read_only ? O_RDONLY : O_RDWR;
    Fd fd(::open(path.c_str(), how | O_NOFOLLOW | O_CLOEXEC));
    if (!fd) {
        const int error = errno;
        return failed(error == EACCES || error == ELOOP ? Errc::permission_denied : Errc::system,
                      error,
                      fmt::format("cannot open the ring's overflow file {}{}", path,
                                  error == EACCES ? owner_text(path) : std::string()));
    }
    struct stat status{};
    if (fstat(fd.get(), &status) != 0) {
        return failed(Errc::system, errno, "cannot fstat the ring's overflow file " + path);
    }
    if (status.st_uid != geteuid() || (status.st_mode & 0777) != 0600 || !S_ISREG(status.st_mode)) {
        return refused(Errc::permission_denied,
                       fmt::format("the ring's overflow file {} has been replaced: it belongs to "
                                   "{} with mode {:03o}, but must belong to {} with mode 600",
                                   path, user_text(status.st_uid), status.st_mode & 0777,
                                   user_text(geteuid())));
    }
    if (static_cast<std::uint64_t>(status.st_size) != bytes) {
        return refused(
            Errc::system,
            fmt::format(
                "the ring's overflow file {} has been replaced: it has {}, but was created with {}",
                path, human_bytes(static_cast<std::uint64_t>(status.st_size)), human_bytes(bytes)));
    }
    const OverflowPath wanted = to_page(path, ring_id);
    OverflowPath found{};
    if (!detail::read_at(fd.get(), 0, &found, sizeof found) ||
        std::memcmp(&found, &wanted, sizeof found) != 0) {
        return refused(Errc::system,
                       fmt::format("the ring's overflow file {} has been replaced: its first page "
                                   "does not name this ring",
                                   path));
    }
    return OverflowFile(std::move(fd), path);
}

std::uint64_t OverflowFile::resident_bytes(const std::string& path) {
    struct stat status{};
    if (lstat(path.c_str(), &status) != 0) return 0;
    const std::uint64_t bytes = static_cast<std::uint64_t>(status.st_blocks) * 512;
    return bytes - std::min<std::uint64_t>(bytes, page_bytes);
}

bool OverflowFile::read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
    return detail::read_at(fd_.get(), offset, to, bytes);
}

Result<void> OverflowFile::reserve(std::uint64_t offset, std::uint64_t bytes) const {
    const int error = detail::allocate(fd_.get(), offset, bytes);
    if (error == 0) return {};
    return failed(Errc::system, error,
                  fmt::format("the overflow file {} cannot grow by {}: free some disk space, or "
                              "create the ring with another --overflow directory",
                              path_, human_bytes(bytes)));
}

Result<void> OverflowFile::lay_over(std::byte* at, std::uint64_t offset, std::uint64_t bytes,
                                    bool writable) const {
    void* const mapped = mmap(at, bytes, PROT_READ | (writable ? PROT_WRITE : 0),
                              MAP_SHARED | MAP_FIXED, fd_.get(), static_cast<off_t>(offset));
    if (mapped != MAP_FAILED) return {};
    return failed(Errc::system, errno,
                  fmt::format("cannot map {} of the overflow file {}", human_bytes(bytes), path_));
}

}  // namespace rollring
