// The texts of a segment's errors: the missing memory and its limit, and the owner of a name.

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>

#include "bounds.hpp"
#include "segment_object.hpp"

namespace rollring::detail {
namespace {

constexpr const char* shm_directory = "/dev/shm";

// The owner of a file in /dev/shm, if it is another user.
std::optional<uid_t> other_owner(const std::string& file) {
    struct stat status{};
    const std::string path = std::string(shm_directory) + "/" + file;
    if (lstat(path.c_str(), &status) != 0 || status.st_uid == geteuid()) return std::nullopt;
    return status.st_uid;
}

// Another user who has a ring of this name: rings are found by user and name.
std::optional<uid_t> other_user_with(std::string_view name) {
    const std::string ending = fmt::format(".{}", name);
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(shm_directory, error)) {
        const std::string file = entry.path().filename().string();
        const std::string_view view = file;
        if (!view.starts_with("rollring.") || !view.ends_with(ending)) continue;
        const std::string_view rest = view.substr(9);
        if (rest.find_first_not_of("0123456789") != rest.size() - ending.size()) continue;
        if (const auto owner = other_owner(file)) return owner;
    }
    return std::nullopt;
}

}  // namespace

std::unexpected<Error> no_space(int error, std::uint64_t wanted_bytes, std::string_view what,
                                std::string_view remedy) {
    return failed(Errc::not_enough_shared_memory, error,
                  shortage(least_memory_bound(), what, wanted_bytes, remedy));
}

// Slow: searches /dev/shm and asks for users' names.
Error explain(Error error, const std::string& object) {
    if (error.code == Errc::permission_denied) {
        if (const auto owner = other_owner(object.substr(1))) {
            error.message += fmt::format(": it belongs to {}, but this process runs as {}",
                                         user_text(*owner), user_text(geteuid()));
        }
    } else if (error.code == Errc::not_found) {
        const std::string_view name = ring_of(object);
        if (const auto owner = other_user_with(name)) {
            error.message = fmt::format(
                "ring {0} of {1} not found, but {2} has a ring of that name: a ring serves the "
                "processes of one user, so run this as {2}, or create a ring of your own",
                name, user_text(geteuid()), user_text(*owner));
        }
    }
    return error;
}

Result<struct stat> check_owner(int fd, const std::string& object) {
    struct stat status{};
    if (fstat(fd, &status) != 0) {
        return failed(Errc::system, errno, "cannot fstat " + object);
    }
    if (status.st_uid != geteuid()) {
        return refused(
            Errc::permission_denied,
            fmt::format("{} belongs to {}, but this process runs as {}: refusing to use it", object,
                        user_text(status.st_uid), user_text(geteuid())));
    }
    if ((status.st_mode & 0777) != 0600 || !S_ISREG(status.st_mode)) {
        return refused(Errc::permission_denied,
                       fmt::format("{} has mode {:o} instead of 600: refusing to use it, because "
                                   "other users may open it",
                                   object, status.st_mode & 0777));
    }
    return status;
}

}  // namespace rollring::detail
