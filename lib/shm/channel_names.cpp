#include "channel_names.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "human.hpp"
#include "rollring/time.hpp"
#include "xxh3.hpp"

namespace rollring::channel {
namespace {

// The rest of sockaddr_un's 108 bytes behind "/proc/self/fd/<seven digits>/" and before "@<rank>".
constexpr std::size_t name_bytes_max = 72;

// No ring's name contains '~'.
std::string short_name(std::string_view ring) {
    if (ring.size() <= name_bytes_max) return std::string(ring);
    constexpr std::size_t hash_bytes = 17;
    return fmt::format("{}~{:016x}", ring.substr(0, name_bytes_max - hash_bytes),
                       XXH3_64bits(ring.data(), ring.size()));
}

std::vector<std::string> files() {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory_path(), error)) {
        names.push_back(entry.path().filename().string());
    }
    return names;
}

// The rank, if the file is a socket of this ring (empty: of any ring).
std::optional<std::uint32_t> rank_in(std::string_view file, std::string_view ring) {
    const std::size_t at = file.rfind('@');
    if (at == std::string_view::npos || (!ring.empty() && file.substr(0, at) != short_name(ring)))
        return {};
    std::uint32_t rank = 0;
    const std::string_view digits = file.substr(at + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc{} || end != digits.data() + digits.size()) return {};
    return rank;
}

}  // namespace

std::string directory_path() {
    return fmt::format("/dev/shm/rollring-weights.{}", geteuid());
}

Result<Fd> open_directory(bool make) {
    const std::string path = directory_path();
    if (make && mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
        return failed(Errc::system, errno, "cannot make " + path);
    }
    Fd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!directory) {
        const int error = errno;
        return failed(error == ENOENT   ? Errc::not_found
                      : error == EACCES ? Errc::permission_denied
                                        : Errc::system,
                      error, "cannot open " + path);
    }
    struct stat status{};
    if (fstat(directory.get(), &status) != 0 || status.st_uid != geteuid() ||
        (status.st_mode & 0077) != 0) {
        return failed(Errc::permission_denied, 0,
                      fmt::format("{} must belong to {} with mode 0700, but belongs to {} with "
                                  "mode {:04o}: remove it",
                                  path, user_text(geteuid()), user_text(status.st_uid),
                                  status.st_mode & 07777));
    }
    return directory;
}

std::string file_name(std::string_view ring, std::uint32_t rank) {
    return fmt::format("{}@{}", short_name(ring), rank);
}

// A path through the directory can exceed sockaddr_un's 108 bytes; one through the descriptor
// cannot.
Result<sockaddr_un> address_of(const Fd& directory, std::string_view file) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = fmt::format("/proc/self/fd/{}/{}", directory.get(), file);
    if (path.size() >= sizeof address.sun_path) {
        return failed(Errc::system, ENAMETOOLONG,
                      fmt::format("the name {} does not fit into a socket's address", file));
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    return address;
}

Fd make_socket() {
    return Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// 0, or the errno.
int try_connect(int socket, const sockaddr_un& address) {
    if (socket < 0) return EBADF;
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    return connect(socket, generic, sizeof address) == 0 ? 0 : errno;
}

DirectoryLock::DirectoryLock(const Fd& directory) : fd_(directory.get()) {
    const Deadline patience = Deadline::after_ms(2000);
    while (!(held_ = flock(fd_, LOCK_EX | LOCK_NB) == 0) && !patience.passed()) {
        if (errno != EWOULDBLOCK && errno != EINTR) break;
        poll(nullptr, 0, 2);
    }
}

DirectoryLock::~DirectoryLock() {
    if (held_) flock(fd_, LOCK_UN);
}

std::vector<std::uint32_t> ranks_of(std::string_view ring) {
    std::vector<std::uint32_t> ranks;
    for (const std::string& file : files()) {
        if (const auto rank = rank_in(file, ring)) ranks.push_back(*rank);
    }
    std::ranges::sort(ranks);
    return ranks;
}

std::uint32_t sweep(std::string_view ring, bool remove) {
    auto directory = open_directory(false);
    if (!directory) return 0;
    const DirectoryLock lock(*directory);
    if (!lock.held()) return 0;
    std::uint32_t dead = 0;
    for (const std::string& file : files()) {
        if (!rank_in(file, ring)) continue;
        const auto address = address_of(*directory, file);
        if (!address || try_connect(make_socket().get(), *address) != ECONNREFUSED) continue;
        if (!remove || unlinkat(directory->get(), file.c_str(), 0) == 0) dead++;
    }
    if (remove) rmdir(directory_path().c_str());  // fails while other names are in it
    return dead;
}

}  // namespace rollring::channel
