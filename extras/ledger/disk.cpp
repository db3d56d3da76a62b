#include "disk.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "file_names.hpp"

namespace rollring::ledger {
namespace {

std::atomic<Disk*>& present() {
    static Disk system;
    static std::atomic<Disk*> used = &system;
    return used;
}

}  // namespace

Disk& disk() {
    return *present().load();
}

void use_disk(Disk* other) {
    static Disk* const system = present().load();
    present().store(other != nullptr ? other : system);
}

int Disk::make(const std::filesystem::path& path, std::uint64_t bytes, bool direct, Fd& fd) {
    constexpr int how = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    if (direct) fd = Fd(open_new(path, how | O_DIRECT));
    const bool buffered = !fd && (!direct || errno == EINVAL);
    // Linux has made the file by the time that it refuses direct writes.
    if (buffered && direct) unlink(path.c_str());
    if (buffered) fd = Fd(open_new(path, how));
    if (!fd) return errno;
    if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0) return 0;
    if (errno == EOPNOTSUPP || errno == ENOSYS) return 0;
    const int error = errno;
    unlink(path.c_str());
    return error;
}

int Disk::open_new(const std::filesystem::path& path, int how) {
    return open(path.c_str(), how, 0600);
}

int Disk::write(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
    while (!bytes.empty()) {
        const ssize_t wrote = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return wrote < 0 ? errno : ENOSPC;
        bytes = bytes.subspan(static_cast<std::size_t>(wrote));
        offset += static_cast<std::uint64_t>(wrote);
    }
    return 0;
}

int Disk::sync(int fd) {
    return fdatasync(fd) == 0 ? 0 : errno;
}

int Disk::sync_names(const std::filesystem::path& directory) {
    const auto synced = recording::sync_names(directory);
    if (synced) return 0;
    return synced.error().system_errno != 0 ? synced.error().system_errno : EIO;
}

int Disk::sync_file(const std::filesystem::path& path) {
    const Fd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return file ? Disk::sync(file.get()) : errno;
}

int Disk::note(const std::filesystem::path& path, std::string_view text) {
    const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file) return errno;
    if (const int error = Disk::write(file.get(), std::as_bytes(std::span(text)), 0)) return error;
    if (fsync(file.get()) != 0) return errno;
    return Disk::sync_names(path.parent_path());
}

int Disk::keep(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file) return errno;
    const int error = Disk::write(file.get(), bytes, 0);
    // A part of it would only take space.
    if (error != 0) unlink(path.c_str());
    return error;
}

int Disk::remove(const std::filesystem::path& path) {
    return unlink(path.c_str()) == 0 ? 0 : errno;
}

int Disk::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
    return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

}  // namespace rollring::ledger
